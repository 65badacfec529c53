"""From host arrays to JAX's devices and back, with the two traps that JAX sets.

Aliasing: where a "device" is host memory, JAX may keep a pointer into the numpy array that it was given, whatever
`may_alias` says. A slot that is refilled would then change a batch in use. So such targets get a private copy, and
every result is checked.

Narrowing: with 64-bit mode off, JAX would wrap 64-bit leaves to 32 bits without a word.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.errors import JaxRuntimeError
from jax.sharding import Sharding, SingleDeviceSharding

from forebay.wire import (
    Array,
    Event,
    HostError,
    LocalError,
    TreeError,
    TreeRegistry,
    default_registry,
    printable,
    unflatten,
)

from .device_work import DispatchedArrays, is_work
from .host_memory import aligned_memory
from .host_tree import HostTree, PlacedTree, host_tree_of
from .once import OneWarning
from .placement import Device, Placement, Target
from .transfer import Dispatched, OnDevice

unwatchable_warning = OneWarning()

_HOST_MEMORY_KINDS = ("unpinned_host", "pinned_host")
_NARROWED = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}


class JaxTransfer:
    """Transfers micro-batches to JAX's devices.

    Args:
        shardings: Where leaves go: None for JAX's default device, a sharding, a device, a pytree prefix of those
            with the micro-batch's own containers, or a function of a leaf's path and `jax.ShapeDtypeStruct`.
            Pass what the step's function takes, so that it never reshards. A leaf that a `NamedSharding` cannot
            divide is replicated over its mesh, with a warning.
        registry: Classes that may occur in micro-batches.
        cast_64bit: Narrow 64-bit leaves where JAX's 64-bit mode is off, instead of refusing them.
    """

    def __init__(
        self, shardings: Any = None, *, registry: TreeRegistry = default_registry, cast_64bit: bool = False
    ) -> None:
        self._placement = Placement(shardings, registry)
        self._registry = registry
        self._cast_64bit = cast_64bit

    def take_apart(self, payload: Any) -> HostTree:
        """Takes a payload apart.

        Raises:
            TreeError: It is no micro-batch; the message names the path.
        """
        try:
            return host_tree_of(payload, self._registry)
        except TreeError:
            _check_no_device_arrays(payload)
            raise

    def place(self, tree: HostTree) -> PlacedTree:
        """Finds where the leaves go.

        Raises:
            TreeError: The shardings do not fit, a leaf would be narrowed, or a class is not registered.
        """
        for leaf, path in zip(tree.leaves, tree.paths, strict=True):
            self._check_64bit(leaf, path)
        return PlacedTree(tree, tuple(self._placement.targets(tree)))

    def issue(self, placed: PlacedTree) -> list[jax.Array]:
        """Starts a transfer.

        Raises:
            TreeError: A leaf cannot be had on the device; the message names its path.
        """
        default_is_host_memory = None in placed.targets and _default_is_host_memory()
        return [
            _put(self._fit_64bit(leaf, path), target, path, default_is_host_memory)
            for leaf, target, path in zip(placed.tree.leaves, placed.targets, placed.tree.paths, strict=True)
        ]

    def complete(self, placed: PlacedTree, issued: list[jax.Array]) -> OnDevice:
        """Waits until all leaves are on the device; then nothing refers to the host's memory any more.

        Returns:
            The micro-batch. With several processes each of its arrays is the global one, of which the host tree
            holds this process's part.

        Raises:
            LocalError: A device array lies inside of the host's memory; it must not be used.
        """
        tree = placed.tree
        for array in issued:
            array.block_until_ready()
        for array, leaf, path in zip(issued, tree.leaves, tree.paths, strict=True):
            check_outside(array, leaf, path)
        return OnDevice(
            tree=unflatten(tree.structure, issued, registry=self._registry),
            arrays=tuple(issued),
            structure=tree.structure,
            paths=tree.paths,
            targets=placed.targets,
            host_bytes=tree.host_bytes,
            signature=placed.signature,
        )

    def fetch(self, on_device: OnDevice) -> PlacedTree:
        """Copies a micro-batch to private memory of the host.

        Raises:
            HostError: Another process holds a part of it.
        """
        for array, path in zip(on_device.arrays, on_device.paths, strict=True):
            if not array.is_fully_addressable:
                raise HostError(f"leaf {path} is spread over several processes", got=array.sharding)
        leaves = tuple(np.array(array) for array in on_device.arrays)
        tree = HostTree(on_device.structure, on_device.paths, leaves)
        return PlacedTree(tree, on_device.targets, on_device.signature)

    def watch(self, outputs: Any) -> Dispatched | None:
        """Returns how to wait for the work that makes `outputs`: a pytree in which some leaves are device arrays.

        Anything with the methods `is_ready` and `block_until_ready` counts as one.
        """
        try:
            arrays = [leaf for leaf in jax.tree.leaves(outputs) if is_work(leaf)]
            return DispatchedArrays(arrays) if arrays else None
        except Exception as error:  # noqa: BLE001 - the engine's outputs may be anything, and the step was done
            unwatchable_warning.give(Event.STAGE_UNWATCHED, reason=printable(error))
            return None

    def _check_64bit(self, leaf: Array, path: str) -> None:
        narrowed = _NARROWED.get(leaf.dtype.name)
        if narrowed is not None and not self._cast_64bit and not jax.config.read("jax_enable_x64"):
            raise TreeError(
                f"leaf {path} would be narrowed without a word",
                got=leaf.dtype.name,
                limit=f"{narrowed}, because JAX's 64-bit mode is off",
                remedy="set jax_enable_x64, send 32-bit leaves, or ask for cast_64bit=True",
            )

    def _fit_64bit(self, leaf: Array, path: str) -> Array:
        # Checked again: the mode may be another on this thread, or by now.
        self._check_64bit(leaf, path)
        narrowed = _NARROWED.get(leaf.dtype.name)
        return leaf if narrowed is None or jax.config.read("jax_enable_x64") else leaf.astype(narrowed)


def check_outside(array: jax.Array, leaf: Array, path: str) -> None:
    """Checks that no host-memory buffer of a device array lies inside the leaf that it came from.

    Raises:
        LocalError: One does.
    """
    if not leaf.nbytes or not _is_host_memory(array.sharding):
        return
    start = leaf.ctypes.data
    for shard in array.addressable_shards:
        if shard.data.size and start <= shard.data.unsafe_buffer_pointer() < start + leaf.nbytes:
            raise LocalError(
                f"leaf {path} aliases the host memory that it came from",
                remedy="please report this with the versions of jax and jaxlib",
            )


def _check_no_device_arrays(payload: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(payload):
        if isinstance(leaf, jax.Array):
            raise TreeError(
                f"leaf {jax.tree_util.keystr(path)} is on the device already",
                got=type(leaf).__name__,
                limit="numpy arrays and static values",
                remedy="pass forebay.Prepared(tree) if all of it is, else numpy.asarray(leaf)",
            )


def _put(host: Array, target: Target, path: str, default_is_host_memory: bool) -> jax.Array:
    if default_is_host_memory if target is None else _target_is_host_memory(target):
        host = _private_copy(host)
    try:
        if isinstance(target, Sharding) and not target.is_fully_addressable:
            array: jax.Array = jax.make_array_from_process_local_data(target, host)
        else:
            array = jax.device_put(host, target)
    except (TypeError, ValueError, JaxRuntimeError) as error:
        if isinstance(error, JaxRuntimeError) and not str(error).startswith("INVALID_ARGUMENT"):
            raise  # no room, a device that is gone: it may pass
        raise TreeError(
            f"leaf {path} cannot be put on the device: {error}",
            got=f"{host.dtype}{list(host.shape)} for {target}",
            remedy="choose a sharding that fits it",
        ) from error
    return array


def _default_is_host_memory() -> bool:
    return _is_host_memory(jax.device_put(np.zeros((), np.bool_)).sharding)


def _target_is_host_memory(target: Sharding | Device) -> bool:
    if isinstance(target, Sharding):
        return _is_host_memory(target)
    return _is_host_memory(SingleDeviceSharding(target))


def _is_host_memory(sharding: Sharding) -> bool:
    if sharding.memory_kind in _HOST_MEMORY_KINDS:
        return True
    devices: set[Device] = sharding.device_set
    return any(device.platform == "cpu" for device in devices)


def _private_copy(host: Array) -> Array:
    # Aligned, so that JAX keeps this copy instead of making a second one.
    copy: Array = aligned_memory(host.nbytes).view(host.dtype).reshape(host.shape)
    np.copyto(copy, host)
    return copy
