"""The trainers that are attached, or that may still read slots, by the lock that each of them holds."""

from __future__ import annotations

from collections.abc import Iterator

from forebay.wire import Peer, RefusalCode

from .actions import Address, WatchHolder
from .micro_batch import MicroBatch
from .outbox import Outbox
from .train_queue import Attachment, TrainQueue


class Attachments:
    """Attachments, from the first word of a holder until its lock is free.

    A queue has one trainer. A daemon that could not read a slot may have let another one attach while the slot's
    holder lived, so that the next daemon finds two holders. Both stay known then; the first that attaches is the
    queue's trainer, and after its death the other is again.

    Args:
        out: Where actions and refusals go.
    """

    def __init__(self, out: Outbox) -> None:
        self._out = out
        self._by_holder: dict[str, tuple[TrainQueue, Attachment]] = {}

    def __iter__(self) -> Iterator[Attachment]:
        return (attachment for _, attachment in self._by_holder.values())

    def at(self, queue: TrainQueue) -> Iterator[Attachment]:
        """Yields the holders that are known at a queue."""
        return (attachment for known, attachment in self._by_holder.values() if known is queue)

    def know(self, queue: TrainQueue, holder: str, peer: Peer, now: float) -> Attachment:
        """Returns a holder's attachment; a new one's lock is watched, and it is its queue's trainer if none is."""
        if holder not in self._by_holder:
            attachment = Attachment(holder, None, peer, now)
            queue.attachment = queue.attachment or attachment
            self._by_holder[holder] = (queue, attachment)
            self._out.do(WatchHolder(holder))
        return self._by_holder[holder][1]

    def find(self, holder: str) -> tuple[TrainQueue, Attachment] | None:
        """Returns a holder's queue and attachment, if it has one."""
        return self._by_holder.get(holder)

    def holding(self, batch: MicroBatch) -> Attachment | None:
        """Returns the trainer that has a micro-batch, in a slot or on its device."""
        for attachment in self:
            if attachment.lent.get(batch.slot) is batch or attachment.on_device.get(batch.key) is batch:
                return attachment
        return None

    def pop(self, holder: str) -> tuple[TrainQueue, Attachment] | None:
        """Forgets a holder whose lock is free; returns what `find` would have."""
        return self._by_holder.pop(holder, None)

    def of(self, address: Address, holder: str, request_id: int) -> tuple[TrainQueue, Attachment] | None:
        """Returns what a holder is attached to by this very connection; else the request is refused."""
        found = self.find(holder)
        if found is None or found[1].address != address:
            words = "attach first; the daemon may have restarted"
            self._out.refuse(address, request_id, RefusalCode.NOT_ATTACHED, words)
            return None
        return found
