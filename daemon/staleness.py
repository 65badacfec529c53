"""Decisions about what is stale: too old, or of a policy that is too many versions behind its queue's."""

from __future__ import annotations

import math
from collections.abc import Iterator

from forebay.shm import SlotState
from forebay.wire import MAX_POLICY_VERSION, Advance, Advanced, Event, MicroBatchState, RefusalCode, Stale

from .actions import Address, Level, Reply
from .book import Book
from .micro_batch import MicroBatch
from .train_queue import TrainQueue

STALE_BY = ("version", "expired", "age")
"""What stale micro-batches are counted under, as `offered_stale_REASON` and `dropped_stale_REASON`."""

_ON_ITS_WAY = (MicroBatchState.OFFERED, MicroBatchState.FILLING)


class Staleness:
    """What is stale is dropped with a reason, unless the trainer has it on its device.

    Of a slot that is lent the trainer is told, once in each of its attachments; it drops what it has not begun to
    transfer.

    Args:
        book: The shared books.
    """

    def __init__(self, book: Book) -> None:
        self._book = book

    # What is so.

    def why(self, batch: MicroBatch, now: float) -> tuple[str, str]:
        """Returns why a micro-batch is stale: what it is counted under, and in words; both empty if it is not."""
        settings = self._book.settings
        present, behind = self._book.queues.versions_behind(batch)
        if 0 <= settings.max_versions_behind < behind:
            words = f"policy version {batch.policy_version} is {behind} behind {present}"
            return "version", f"stale: {words}, limit {settings.max_versions_behind}"
        age_s = now - batch.offered_at
        if batch.expires_at <= now:
            over_s = now - batch.expires_at
            return "expired", f"stale: its time was over {over_s:.1f} s ago, it is {age_s:.1f} s old"
        if self._aged_at(batch) <= now:
            return "age", f"stale: it is {age_s:.1f} s old, limit {settings.max_age_s:g} s"
        return "", ""

    def is_fresh(self, batch: MicroBatch, now: float) -> bool:
        """Tells whether a micro-batch may still go to the device."""
        return not self.why(batch, now)[0]

    def expires_s(self, batch: MicroBatch, now: float) -> float | None:
        """Returns the seconds in which a micro-batch's transfer may begin; None for any number."""
        stale_at = self._stale_at(batch)
        if stale_at <= now or not self.is_fresh(batch, now):
            return 0.0
        return None if stale_at == math.inf else stale_at - now

    def _stale_at(self, batch: MicroBatch) -> float:
        return min(batch.expires_at, self._aged_at(batch))

    def _aged_at(self, batch: MicroBatch) -> float:
        return batch.offered_at + (self._book.settings.max_age_s or math.inf)

    def deadlines(self) -> Iterator[float]:
        """Yields when micro-batches become stale that can be dropped, or whose trainer can be told."""
        # Asked in each turn of the loop: where nothing ever gets too old, a look at each must do.
        has_max_age = self._book.settings.max_age_s > 0
        for batch in self._book.batches.values():
            if not has_max_age and batch.expires_at == math.inf:
                continue
            if self._may_drop(batch) or self._may_tell(batch) is not None:
                yield self._stale_at(batch)

    # What is done.

    def adopted(self, now: float) -> None:
        """Learns what the slots of an adopted pool tell of versions, and ends what became stale meanwhile."""
        for batch in list(self._book.batches.values()):
            # A reset forgot the version of what was with the trainer then.
            if batch.policy_version is not None and not batch.was_reset:
                self.learn(self._book.queues.of(batch.queue), batch.policy_version, now)
        self.sweep(now)

    def learn(self, queue: TrainQueue, version: int, now: float, *, spare: MicroBatch | None = None) -> None:
        """Learns a policy version that a queue was told; what is too many behind the greatest one is dropped.

        Args:
            queue: The queue.
            version: The version.
            now: Monotonic second.
            spare: Left alone, since the offer that tells the version takes its place.
        """
        queue.version_told_at = now
        if queue.policy_version is None or version > queue.policy_version:
            queue.policy_version = version
            self.sweep(now, queue=queue.name, spare=spare)

    def advance(self, sender: Address, request: Advance, now: float) -> None:
        """Hears from an orchestrator which policy version a queue has now."""
        book = self._book
        if not book.is_name(request.queue) or not 0 <= request.policy_version <= MAX_POLICY_VERSION:
            words = f"the queue's name is empty or too long, or the version not 0 to {MAX_POLICY_VERSION}"
            book.out.refuse(sender, request.id, RefusalCode.BAD_REQUEST, words)
            return
        if words := book.queues.make_room_for(request.queue):
            book.out.refuse(sender, request.id, RefusalCode.TOO_MANY, words)
            return
        queue = book.queues.of(request.queue)
        self.learn(queue, request.policy_version, now)
        present = queue.policy_version
        assert present is not None
        book.out.do(Reply(sender, Advanced(id=request.id, policy_version=present)))

    def sweep(self, now: float, *, queue: str | None = None, spare: MicroBatch | None = None) -> None:
        """Ends all that is stale, in one queue or in all of them."""
        for batch in list(self._book.batches.values()):
            if batch is spare or (queue is not None and batch.queue != queue):
                continue
            count, words = self.why(batch, now)
            if not count:
                continue
            if self._may_drop(batch):
                self._drop(batch, count, words, now)
            elif (trainer := self._may_tell(batch)) is not None:
                batch.was_told_stale = True
                self._book.out.do(
                    Reply(trainer, Stale(slot=batch.slot, generation=batch.generation, reason=words))
                )

    def tell_again(self, queue: TrainQueue, now: float) -> None:
        """Tells a trainer that has attached again what of its slots is stale: it may not have heard."""
        for batch in queue.attachment.lent.values() if queue.attachment is not None else ():
            batch.was_told_stale = False
        self.sweep(now, queue=queue.name)

    def offered(self, batch: MicroBatch, now: float) -> str:
        """Returns why a micro-batch that is offered is stale already, and counts that; empty if it is not."""
        count, words = self.why(batch, now)
        if count:
            self._count(batch, f"offered_stale_{count}", now)
        return words

    def note_dropped(self, batch: MicroBatch, now: float) -> None:
        """Notes that a trainer drops a micro-batch because it was stale; before it ends."""
        count, _ = self.why(batch, now)
        # By its own clock, or by a version that this daemon was never told.
        self._mark(batch, count or "expired", now)

    def _drop(self, batch: MicroBatch, count: str, words: str, now: float) -> None:
        self._mark(batch, count, now)
        if not batch.was_published:
            self._book.outcomes.refuse_attempt(batch, RefusalCode.STALE, words)
        self._book.drop(batch, now, words)

    def _mark(self, batch: MicroBatch, count: str, now: float) -> None:
        batch.is_stale = True
        self._count(batch, f"dropped_stale_{count}", now)

    def _count(self, batch: MicroBatch, counter: str, now: float) -> None:
        self._book.out.counters[counter] += 1
        self._book.out.log(
            Level.WARNING,
            Event.STALE,
            queue=batch.queue,
            key=batch.key,
            policy_version=batch.policy_version,
            current_version=self._book.queues.versions_behind(batch)[0],
            age_s=round(now - batch.offered_at, 3),
        )

    def _may_drop(self, batch: MicroBatch) -> bool:
        if batch.state in _ON_ITS_WAY:
            return True
        return batch.state is MicroBatchState.READY and self._slot_state(batch) is SlotState.READY

    def _may_tell(self, batch: MicroBatch) -> Address | None:
        """Returns the trainer that holds a micro-batch on its host, if it can be told and was not yet."""
        is_lent = batch.state is MicroBatchState.READY and self._slot_state(batch) is SlotState.LENT
        trainer = self._book.queues.trainer_of(batch.queue)
        if not is_lent or trainer is None or batch.slot not in trainer.lent or batch.was_told_stale:
            return None
        return trainer.address

    def _slot_state(self, batch: MicroBatch) -> SlotState:
        return self._book.slots[batch.slot].state
