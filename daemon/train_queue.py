"""A queue: its READY micro-batches in order and the trainer at its end."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable

from forebay.wire import Peer

from .actions import Address
from .micro_batch import MicroBatch


@dataclasses.dataclass(slots=True, eq=False)
class Attachment:
    """The trainer that is attached to a queue.

    Attributes:
        holder: Name of its lock file; how it is known to be alive.
        address: Where it can be told something; None after a daemon restart until it attaches again.
        peer: Who it is, for people.
        since: Monotonic second of its attaching.
        is_back: Whether it has attached to this daemon; else all that is known of it is from the one before.
        credit_total: Lends in order that it has allowed.
        lent_total: Lends in order that it has had.
        wanted_keys: Keys that it waits for beyond that.
        asks_since: Monotonic second since which it has asked for more than it was lent; 0 if it does not.
        lent: Slot index -> the micro-batch in it.
        on_device: Key -> promoted micro-batch that is not finished.
    """

    holder: str
    address: Address | None
    peer: Peer
    since: float
    is_back: bool = True
    credit_total: int = 0
    lent_total: int = 0
    wanted_keys: tuple[str, ...] = ()
    asks_since: float = 0.0
    lent: dict[int, MicroBatch] = dataclasses.field(default_factory=dict)
    on_device: dict[str, MicroBatch] = dataclasses.field(default_factory=dict)

    @property
    def asks(self) -> bool:
        """Whether it asks for more than it was lent."""
        return bool(self.wanted_keys) or self.lent_total < self.credit_total


class TrainQueue:
    """One named FIFO.

    Args:
        name: Its name.

    Attributes:
        policy_version: The greatest that anybody told; None if nobody did.
        version_told_at: Monotonic second in which that was; 0 if nobody did.
        last_trainer: The trainer that was gone last.
        gone_at: Monotonic second in which that was known.
        was_seen_to_go: Whether it went just then; else it may have gone before this daemon was there.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.attachment: Attachment | None = None
        self.policy_version: int | None = None
        self.version_told_at = 0.0
        self.last_trainer: Peer | None = None
        self.gone_at = 0.0
        self.was_seen_to_go = True
        self._ready: list[MicroBatch] = []

    def __repr__(self) -> str:
        return f"TrainQueue({self.name!r}, ready={[batch.key for batch in self._ready]})"

    @property
    def ready(self) -> tuple[MicroBatch, ...]:
        """READY micro-batches in order."""
        return tuple(self._ready)

    def left(self, trainer: Peer, now: float, *, was_seen: bool) -> None:
        """Notes that a trainer is gone, and whether this daemon was there then."""
        self.last_trainer, self.gone_at, self.was_seen_to_go = trainer, now, was_seen

    def insert(self, batch: MicroBatch) -> None:
        """Puts a micro-batch at the place that its sequence gives it."""
        bisect.insort(self._ready, batch, key=lambda entry: entry.sequence)

    def remove(self, batch: MicroBatch) -> None:
        """Takes a READY micro-batch out."""
        self._ready.remove(batch)

    def next_to_lend(self, may_be_lent: Callable[[MicroBatch], bool]) -> MicroBatch | None:
        """Returns what the trainer is owed next, or None.

        Args:
            may_be_lent: What is not allowed by this is passed over.
        """
        trainer = self.attachment
        if trainer is None or trainer.address is None:
            return None
        for batch in self._ready if trainer.wanted_keys else ():
            if batch.key in trainer.wanted_keys and may_be_lent(batch):
                return batch
        if trainer.lent_total < trainer.credit_total:
            return next(filter(may_be_lent, self._ready), None)
        return None
