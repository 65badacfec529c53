"""From host arrays to the device, with the two traps that JAX sets.

Aliasing: where a "device" is host memory, JAX may keep a pointer into the numpy array that it was given, whatever
`may_alias` says. A slot that is refilled would then change a batch in use. So such targets get a private copy, and
every result is checked.

Narrowing: with 64-bit mode off, JAX would wrap 64-bit leaves to 32 bits without a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from forebay.wire import LEAF_ALIGNMENT, Array, LocalError, TreeError

from .host_batch import HostBatch
from .placement import Device, Target

_HOST_MEMORY_KINDS = ("unpinned_host", "pinned_host")
_NARROWED = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}


def put_on_device(batch: HostBatch, targets: Sequence[Target], *, cast_64bit: bool) -> list[jax.Array]:
    """Transfers every leaf of a lent slot and waits until all of them are on the device.

    When this returns, nothing refers to the slot any more, so it may be released.

    Args:
        batch: The lent slot.
        targets: One a leaf.
        cast_64bit: Narrow 64-bit leaves to 32 bits where JAX's 64-bit mode is off, instead of refusing.

    Returns:
        One device array a leaf, in leaf order. With several processes each is the global array of which the
        slot holds this process's part.

    Raises:
        TreeError: A leaf cannot be had on the device; the message names its path.
        LocalError: A device array lies inside the slot; it must not be used.
    """
    paths = batch.manifest.paths
    default_is_host_memory = any(target is None for target in targets) and _default_is_host_memory()
    arrays = [
        _put(_fit_64bit(view, path, cast_64bit), target, path, default_is_host_memory)
        for view, target, path in zip(batch.views, targets, paths, strict=True)
    ]
    for array in arrays:
        array.block_until_ready()
    for array, path in zip(arrays, paths, strict=True):
        check_outside(array, batch.body, path)
    return arrays


def check_outside(array: jax.Array, body: memoryview, path: str) -> None:
    """Checks that no host-memory buffer of a device array lies inside a slot.

    Raises:
        LocalError: One does.
    """
    if not _is_host_memory(array.sharding):
        return
    start = np.frombuffer(body, np.uint8).ctypes.data if len(body) else 0
    for shard in array.addressable_shards:
        if shard.data.size and start <= shard.data.unsafe_buffer_pointer() < start + len(body):
            raise LocalError(
                f"leaf {path} aliases the slot it came from",
                remedy="please report this with the versions of jax and jaxlib",
            )


def _put(host: Array, target: Target, path: str, default_is_host_memory: bool) -> jax.Array:
    if default_is_host_memory if target is None else _target_is_host_memory(target):
        host = _private_copy(host)
    try:
        if isinstance(target, Sharding) and not target.is_fully_addressable:
            array: jax.Array = jax.make_array_from_process_local_data(target, host)
        else:
            array = jax.device_put(host, target)
    except (TypeError, ValueError) as error:
        raise TreeError(
            f"leaf {path} cannot be put on the device: {error}",
            got=f"{host.dtype}{list(host.shape)} for {target}",
        ) from error
    return array


def _fit_64bit(view: Array, path: str, cast_64bit: bool) -> Array:
    narrowed = _NARROWED.get(view.dtype.name)
    if narrowed is None or jax.config.read("jax_enable_x64"):
        return view
    if not cast_64bit:
        raise TreeError(
            f"leaf {path} would be narrowed without a word",
            got=view.dtype.name,
            limit=f"{narrowed}, because JAX's 64-bit mode is off",
            remedy="set jax_enable_x64, send 32-bit leaves, or attach with cast_64bit=True",
        )
    return view.astype(narrowed)


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
