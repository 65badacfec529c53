"""The trainers that are attached, or that may still read slots, by the lock that each of them holds."""

from __future__ import annotations

from forebay.wire import Peer, RefusalCode

from .actions import Address, WatchHolder
from .outbox import Outbox
from .train_queue import Attachment, TrainQueue


class Attachments:
    """Attachments, from the first word of a holder until its lock is free.

    Args:
        out: Where actions and refusals go.
    """

    def __init__(self, out: Outbox) -> None:
        self._out = out
        self._by_holder: dict[str, tuple[TrainQueue, Attachment]] = {}

    def add(self, queue: TrainQueue, holder: str, peer: Peer, now: float) -> Attachment:
        """Attaches a holder to a queue, and has its lock watched."""
        attachment = Attachment(holder, None, peer, now)
        queue.attachment = attachment
        self._by_holder[holder] = (queue, attachment)
        self._out.do(WatchHolder(holder))
        return attachment

    def found(self, queue: TrainQueue, holder: str, now: float) -> Attachment:
        """Returns the attachment of a holder that a dead daemon knew; it attaches again, or is found dead."""
        if holder not in self._by_holder:
            self.add(queue, holder, Peer(name="a trainer from before the restart", pid=0, host=""), now)
        return self._by_holder[holder][1]

    def find(self, holder: str) -> tuple[TrainQueue, Attachment] | None:
        """Returns a holder's queue and attachment, if it has one."""
        return self._by_holder.get(holder)

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
