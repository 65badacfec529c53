"""Work on the device: how it is told from other leaves, watched and waited for."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import jax

from forebay.sockets import tell
from forebay.wire import Event, words_of

log = logging.getLogger("forebay.trainer")

_KEPT_BYTES = 1 << 16


@runtime_checkable
class WorkOnDevice(Protocol):
    """What a device is making: a `jax.Array`, or something that behaves like one."""

    def is_ready(self) -> bool:
        """Tells whether it is there."""

    def block_until_ready(self) -> Any:
        """Waits until it is."""


def is_work(leaf: Any) -> bool:
    """Tells whether a leaf is something that a device makes."""
    # By its class, whose answer is kept: asked of each leaf itself, 100,000 of them took most of a second.
    return issubclass(type(leaf), WorkOnDevice)


def is_deleted(leaf: Any) -> bool:
    """Tells whether a leaf is a device array that was deleted, or donated to later work."""
    return isinstance(leaf, jax.Array) and leaf.is_deleted()


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
            tell(log, logging.DEBUG, Event.WORK_UNSEEN, reason=words_of(error))
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
                tell(log, logging.DEBUG, Event.WORK_FAILED, reason=words_of(error))

    def _watched(self) -> Iterator[Any]:
        # One at a time: jaxlib 0.10 crashes when it is asked about an array that was deleted since.
        yield from (array for array in self._kept if not is_deleted(array))
        for other in self._looked_at:
            array = other()
            if array is not None and not is_deleted(array):
                yield array
