"""From host arrays to JAX's devices and back, with the two traps that JAX sets.

Aliasing: where a "device" is host memory, JAX may keep a pointer into the numpy array that it was given, whatever
`may_alias` says. A slot that is refilled would then change a batch in use. So such targets get a private copy, and
every result is checked.

Narrowing: with 64-bit mode off, JAX would wrap 64-bit leaves to 32 bits without a word.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jax.errors import JaxRuntimeError
from jax.sharding import Sharding, SingleDeviceSharding

from forebay.wire import (
    LEAF_ALIGNMENT,
    Array,
    HostError,
    LocalError,
    TreeError,
    TreeRegistry,
    default_registry,
    printable,
    unflatten,
)

from .host_tree import HostTree, PlacedTree, host_tree_of
from .once import OneWarning
from .placement import Device, Placement, Target
from .quiet_log import tell
from .transfer import Dispatched, OnDevice

unwatchable_warning = OneWarning(
    "STAGE_UNWATCHED the queue cannot tell when the device has made what the engine returned (%s). Said once"
)

_KEPT_BYTES = 1 << 16
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
            arrays = [leaf for leaf in jax.tree.leaves(outputs) if isinstance(leaf, WorkOnDevice)]
            return DispatchedArrays(arrays) if arrays else None
        except Exception as error:  # noqa: BLE001 - the engine's outputs may be anything, and the step was done
            unwatchable_warning.give(printable(error))
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


@runtime_checkable
class WorkOnDevice(Protocol):
    """What a device is making: a `jax.Array`, or something that behaves like one."""

    def is_ready(self) -> bool:
        """Tells whether it is there."""

    def block_until_ready(self) -> Any:
        """Waits until it is."""


class DispatchedArrays:
    """Work that is done when the arrays that it makes are ready.

    It keeps the smallest of them, if that is small, and only looks at the others: gradients must not live longer
    for being watched. What was deleted, or donated to later work, cannot be waited for.

    Args:
        arrays: At least one.
    """

    def __init__(self, arrays: list[Any]) -> None:
        arrays = sorted(arrays, key=lambda array: getattr(array, "nbytes", 0))
        self._kept = [array for array in arrays[:1] if getattr(array, "nbytes", 0) <= _KEPT_BYTES]
        self._looked_at = [weakref.ref(array) for array in arrays[len(self._kept) :]]

    def __repr__(self) -> str:
        state = "lost" if self.is_lost() else "done" if self.is_done() else "running"
        return f"DispatchedArrays({len(self._kept) + len(self._looked_at)}, {state})"

    def is_done(self) -> bool:
        """Tells whether the smallest of them is ready; never waits."""
        try:
            return next((bool(array.is_ready()) for array in self._watched()), False)
        except Exception as error:  # noqa: BLE001 - donated just now; or no array of JAX's
            tell(logging.DEBUG, "dispatched work cannot be looked at reason=%r", error)
            return False

    def is_lost(self) -> bool:
        """Tells whether there is none left."""
        return next(self._watched(), None) is None

    def wait(self) -> None:
        """Waits for all of them. What went wrong on the device is told to whoever uses its results."""
        for array in self._watched():
            try:
                array.block_until_ready()
            except Exception as error:  # noqa: BLE001 - XLA's errors, and an array deleted just now
                tell(logging.DEBUG, "dispatched work failed reason=%r", error)

    def _watched(self) -> Iterator[Any]:
        # One at a time: jaxlib 0.10 crashes when it is asked about an array that was deleted since.
        yield from (array for array in self._kept if not _is_deleted(array))
        for other in self._looked_at:
            array = other()
            if array is not None and not _is_deleted(array):
                yield array


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


def _is_deleted(array: Any) -> bool:
    return isinstance(array, jax.Array) and array.is_deleted()


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
    memory: np.ndarray[Any, np.dtype[np.uint8]] = np.empty(host.nbytes + LEAF_ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % LEAF_ALIGNMENT
    copy: Array = np.ndarray(host.shape, host.dtype, buffer=memory.data, offset=start)
    np.copyto(copy, host)
    return copy
