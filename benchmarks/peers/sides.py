"""The two sides of a way; each peer's module has `make_sender(job)` and `make_receiver(job)`."""

from __future__ import annotations

import abc
import dataclasses
import queue
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from forebay.wire import MIB, BrokenError, WaitTimeoutError

from .messages import Job
from .region import map_warm

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Ids: TypeAlias = np.ndarray[Any, np.dtype[np.int16]]

CHUNK_BYTES: Final = MIB
ROUND_S: Final = 120.0
"""Seconds that one micro-batch may take, far more than it needs."""


@dataclasses.dataclass(frozen=True, slots=True)
class MicroBatch:
    """What is sent.

    Attributes:
        leaves: int16 [ids] each; they follow each other in memory.
        whole: uint8 [bytes], the same memory, for ways that know of bytes only.
    """

    leaves: Sequence[Ids]
    whole: Bytes

    @property
    def tree(self) -> dict[str, Ids]:
        """The leaves with names that keep their order."""
        return {f"leaf_{number:04d}": leaf for number, leaf in enumerate(self.leaves)}


class Sender(abc.ABC):
    """Sends micro-batches to one receiver at a time."""

    @abc.abstractmethod
    def connect(self, address: str) -> None:
        """Connects, and lets go of a connection before."""

    @abc.abstractmethod
    def send(self, micro_batch: MicroBatch) -> None:
        """Sends one micro-batch; this is what is timed."""

    def settle(self) -> None:  # noqa: B027 - most have nothing to do
        """Makes ready for the next one; not timed."""

    @abc.abstractmethod
    def close(self) -> None:
        """Lets everything go."""


class Receiver(abc.ABC):
    """Takes micro-batches into warm memory.

    Args:
        job: What the process was started with.

    Attributes:
        address: Where it listens.
        target: uint8 [bytes], the memory.
    """

    address: str

    def __init__(self, job: Job) -> None:
        self.target: Bytes = map_warm(job.target)

    @abc.abstractmethod
    def receive(self, nbytes: int) -> float:
        """Waits for one micro-batch; returns the monotonic second at which its last byte lay in the memory."""

    @abc.abstractmethod
    def close(self) -> None:
        """Lets everything go."""


class Arrivals:
    """Hands what a server's threads have received to the thread that waits for it.

    Args:
        what: For messages: `a micro-batch by flight`.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._arrived: queue.SimpleQueue[tuple[int, float]] = queue.SimpleQueue()

    def put(self, nbytes: int, ended_at: float) -> None:
        """Tells that a micro-batch of so many bytes has arrived, and when its last byte lay in the memory."""
        self._arrived.put((nbytes, ended_at))

    def wait(self, nbytes: int) -> float:
        """Waits for one of that size; returns when its last byte lay in the memory.

        Raises:
            WaitTimeoutError: Nothing came.
            BrokenError: It was of another size.
        """
        try:
            got, ended_at = self._arrived.get(timeout=ROUND_S)
        except queue.Empty:
            raise WaitTimeoutError(f"waited {ROUND_S:g} s for {self._what}") from None
        check_whole(self._what, got, nbytes)
        return ended_at


def check_whole(what: str, got: int, nbytes: int) -> None:
    """Raises BrokenError if a micro-batch was of another size."""
    if got != nbytes:
        raise BrokenError(f"{what} has another size", got=got, limit=nbytes)
