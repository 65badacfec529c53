"""Where a transfer puts arrays, and what is put there."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from forebay.trainer import JaxTransfer, StagingQueue, TrainerSettings
from forebay.trainer.host_tree import PlacedTree
from forebay.trainer.transfer import OnDevice

MESH = Mesh(np.array(jax.devices()[:2]), ("data",))
ROWS = NamedSharding(MESH, PartitionSpec("data"))
WHOLE = NamedSharding(MESH, PartitionSpec())
TARGETS = {
    "default": None,
    "device": jax.devices()[1],
    "sharding": SingleDeviceSharding(jax.devices()[2]),
    "rows": ROWS,
    "replicated": WHOLE,
    "pinned": SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host"),
}
EVERYWHERE = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


def queue_of(transfer: JaxTransfer) -> StagingQueue:
    return StagingQueue(transfer, settings=TrainerSettings(stage_batch="stage"))


def placed_tree(transfer: JaxTransfer, payload: Any) -> PlacedTree:
    return transfer.place(transfer.take_apart(payload))


def transferred(transfer: JaxTransfer, placed: PlacedTree) -> OnDevice:
    return transfer.complete(placed, transfer.issue(placed))


def aligned(offset: int, fill: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Makes an array that starts so many bytes behind a multiple of 4096; JAX aliases those that are aligned."""
    memory = np.empty(3 * 4096, np.uint8)
    start = -memory.ctypes.data % 4096 + offset
    array: np.ndarray[Any, np.dtype[np.int32]] = np.ndarray((64, 16), np.int32, buffer=memory.data, offset=start)
    array[:] = fill
    return array
