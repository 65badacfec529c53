"""Micro-batches whose device memory can be seen, and transfers of them that stand still or fail."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np
import pytest

from forebay.trainer import JaxTransfer
from forebay.trainer.host_tree import HostTree, PlacedTree
from forebay.trainer.transfer import OnDevice

from .waiting import WAIT_S

SHAPE = (8, 37)
"""The shape of the leaf that `live` looks for; nothing else in the tests has it."""


def payload(number: int, **more: Any) -> dict[str, Any]:
    """Makes a micro-batch; more leaves or static values make it another kind of micro-batch."""
    return {"x": np.full(SHAPE, number, np.float32), "policy": 7} | more


def number_of(batch: Any) -> int:
    return int(np.asarray(batch["x"]).flat[0])


def live() -> list[int]:
    """The numbers of the micro-batches that use device memory, whoever refers to their arrays."""
    return sorted({int(np.asarray(array).flat[0]) for array in _live_arrays()})


def free_all() -> None:
    """Frees what a failed test has left on the device; the report of its failure refers to it."""
    for array in _live_arrays():
        array.delete()


def _live_arrays() -> list[jax.Array]:
    return [array for array in jax.live_arrays() if array.shape == SHAPE and not array.is_deleted()]


class HeldTransfer(JaxTransfer):
    """A real transfer that stands still where a test holds it.

    Attributes:
        issued: The numbers of the micro-batches whose transfer began, in order.
        threads: The threads that began them.
        begun: Released when a held transfer has put all its arrays on the device.
    """

    def __init__(self, shardings: Any = None) -> None:
        super().__init__(shardings)
        self.issued: list[int] = []
        self.threads: list[threading.Thread] = []
        self.begun = threading.Semaphore(0)
        self._held: set[int] = set()
        self._may_go_on = threading.Semaphore(0)

    def hold(self, number: int) -> None:
        """Has the next transfer of a micro-batch stand still before it is complete."""
        self._held.add(number)

    def wait_until_begun(self) -> None:
        assert self.begun.acquire(timeout=WAIT_S), "no held transfer began"

    def let_go(self) -> None:
        """Lets one held transfer go on."""
        self._may_go_on.release()

    def issue(self, placed: PlacedTree) -> list[jax.Array]:
        self.issued.append(_number(placed.tree))
        self.threads.append(threading.current_thread())
        return super().issue(placed)

    def complete(self, placed: PlacedTree, issued: list[jax.Array]) -> OnDevice:
        number = _number(placed.tree)
        if number in self._held:
            self._held.remove(number)
            self.begun.release()
            assert self._may_go_on.acquire(timeout=WAIT_S), f"nobody let the transfer of {number} go on"
        return super().complete(placed, issued)


def _number(tree: HostTree) -> int:
    return int(tree.leaves[tree.paths.index("['x']")].flat[0])


def large(number: int) -> dict[str, Any]:
    """Makes a micro-batch whose second leaf may not fit."""
    return payload(number) | {"y": np.zeros(3, np.float32)}


class FullDevice:
    """Has no room for some leaves, in the way of XLA."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = True
        self.refused = threading.Semaphore(0)
        self._put = jax.device_put
        monkeypatch.setattr("forebay.trainer.jax_transfer.jax.device_put", self)

    def __call__(self, leaf: Any, *where: Any) -> jax.Array:
        if self.is_full and leaf.shape == (3,):
            self.refused.release()
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12 bytes")
        array: jax.Array = self._put(leaf, *where)
        return array
