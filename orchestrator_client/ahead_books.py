"""The stage-ahead loop's decisions: what is pulled, staged and trained next, and what the caller gets.

No asyncio, no clock, no trainer: events go in with their times, questions are answered from what went in.
"""

from __future__ import annotations

import math
from collections import deque

from forebay.wire import UsageError, printable

from .ahead_states import AHEAD, HELD, LOOKED_AHEAD, READY, AheadEvent, AheadState, Entry
from .freshness import check_freshness
from .source import KeyBook, MicroBatch, Upcoming
from .step_report import Interval, MicroBatchTimes, StepReport
from .trained import Trained

_SHOWN_KEYS = 8


class AheadBooks:
    """The books of one loop.

    Micro-batches stand in the source's order, in which they are trained as well. One lane pulls, one stages, one
    trains; each does one thing at a time, and asks here what.

    Args:
        max_staged: Micro-batches that may be staged, or being staged; 0 for none.
        across_steps: Whether those of a step may be staged before it begins.
        run: What generated keys begin with.
    """

    def __init__(self, max_staged: int, *, across_steps: bool, run: str) -> None:
        self._max_staged = max_staged
        self._across_steps = across_steps
        self._keys = KeyBook(run)
        self._entries: deque[Entry] = deque()
        self._results: deque[Trained] = deque()
        self._filling = StepReport(0)
        self._present: StepReport | None = None
        self._present_is_trained = True
        self._is_given = False
        self._source_has_ended = False
        self._source_failure: Exception | None = None
        self._is_halted = False
        self._is_stopped = False

    def __repr__(self) -> str:
        shown = ", ".join(f"{entry.key!r} {entry.state}" for entry in list(self._entries)[:_SHOWN_KEYS])
        more = len(self._entries) - _SHOWN_KEYS
        return f"[{shown}{f' and {more} more' if more > 0 else ''}], {len(self._results)} results"

    def stages_nothing(self) -> None:
        """Notes, before anything is pulled, that the trainer takes nothing ahead."""
        self._max_staged = 0

    # The pull lane.

    @property
    def may_pull(self) -> bool:
        """Whether the source may be asked for one more.

        Not while the loop holds one that it alone has the bytes of; nor while more than `max_staged` are staged,
        being staged, or skipped and not passed over yet: a source whose micro-batches are all stale is not run
        through while one is trained, or while the caller has not asked for the next step.
        """
        if self._is_halted or self._source_has_ended:
            return False
        states = [entry.state for entry in self._entries]
        is_held = any(state in HELD for state in states)
        return not is_held and sum(state in LOOKED_AHEAD for state in states) <= self._max_staged

    def pulled(self, item: MicroBatch, pull: Interval) -> None:
        """Enters what the source yielded.

        Raises:
            UsageError: It is no micro-batch, or an empty one, or repeats a key, or its version or expiry is none;
                nothing was entered.
        """
        if not isinstance(item, MicroBatch):
            raise UsageError("the source yielded something else", got=type(item).__name__, limit="MicroBatch")
        if item.payload is None:
            raise UsageError("the source yielded a micro-batch without a payload", remedy="leave it out")
        check_freshness(item.policy_version, item.expires_s)
        ends_step = bool(item.ends_step)
        report = self._filling
        key = self._keys.enter(item.key, report.number, report.pulled)
        upcoming = Upcoming(report.number, report.pulled, key, ends_step, item.payload, item.policy_version)
        expires_at = math.inf if item.expires_s is None else pull[1] + item.expires_s
        entry = Entry(upcoming, report, pull, expires_at=expires_at)
        if self._max_staged == 0:
            entry.apply(AheadEvent.KEEP)
        self._entries.append(entry)
        report.pulled += 1
        if ends_step:
            self._filling = StepReport(report.number + 1)

    def source_ended(self) -> None:
        """Notes that there are no more; that ends the last step as well."""
        self._source_has_ended = True
        if self._filling.pulled:
            self._filling = StepReport(self._filling.number + 1)

    def source_failed(self, error: Exception) -> None:
        """Notes that the source failed: it is asked no more, and the caller hears of it in its turn."""
        self._source_failure = error
        self._is_halted = True

    # The stage lane.

    def to_stage(self) -> Entry | None:
        """Returns the micro-batch that may be staged now: in order, one at a time, while there is room."""
        ahead = [entry.state for entry in self._entries if entry.state in AHEAD]
        if self._is_halted or len(ahead) >= self._max_staged or AheadState.STAGING in ahead:
            return None
        first = next((entry for entry in self._entries if entry.state is AheadState.PULLED), None)
        if first is None or (self.is_early(first) and not self._across_steps):
            return None
        return first

    def is_early(self, entry: Entry) -> bool:
        """Tells whether a micro-batch's step has not begun."""
        return self._present is None or entry.report.number > self._present.number

    def held_back(self, entry: Entry) -> None:
        """Notes that the caller wants a micro-batch to wait for its step, and to go inline then."""
        entry.apply(AheadEvent.KEEP)
        entry.report.held_back += 1

    def stages(self, entry: Entry) -> None:
        """Notes that a micro-batch's staging begins."""
        entry.apply(AheadEvent.STAGE)

    def staged(self, entry: Entry) -> None:
        """Notes that a micro-batch is staged."""
        entry.apply(AheadEvent.ARRIVE)

    def fell_back(self, entry: Entry, reason: str) -> None:
        """Notes that a micro-batch goes inline: it could not be staged, or was lost after it was."""
        entry.apply(AheadEvent.FALL_BACK)
        entry.report.fallbacks.append((entry.key, reason))

    def skipped(self, entry: Entry, reason: str) -> None:
        """Notes that a micro-batch is stale: nobody trains it, and the others keep their order."""
        entry.apply(AheadEvent.SKIP)
        entry.report.stale.append((entry.key, reason))
        self._pass_skipped()

    def _pass_skipped(self) -> None:
        while (
            self._entries and self._entries[0].state is AheadState.SKIPPED and not self.is_early(self._entries[0])
        ):
            self._present_is_trained = self._entries.popleft().ends_step

    # The train lane.

    def to_train(self) -> Entry | None:
        """Returns the micro-batch that may be trained now: the first, once its step has begun."""
        first = self._entries[0] if self._entries and not self._is_stopped else None
        if first is None or self.is_early(first) or first.state not in READY:
            return None
        return first

    def trains(self, entry: Entry, now: float) -> None:
        """Notes that a micro-batch's `train_step` is called now."""
        entry.apply(AheadEvent.TRAIN)
        entry.called_at = entry.sent_at = now

    def sent(self, entry: Entry, now: float) -> None:
        """Notes that the bytes of an inline micro-batch have arrived; too late it changes nothing."""
        if entry.state is AheadState.SENDING:
            entry.apply(AheadEvent.SEND)
            entry.sent_at = now

    def trained(self, entry: Entry, trained: Trained, now: float) -> None:
        """Notes that a micro-batch is trained."""
        entry.apply(AheadEvent.FINISH)
        self._entries.popleft()
        self._results.append(trained)
        self._present_is_trained = entry.ends_step
        self._pass_skipped()
        entry.report.add(
            MicroBatchTimes(
                key=entry.key,
                source=trained.source,
                pull=entry.pull,
                stage=entry.stage,
                free_at=entry.report.free_at,
                called_at=entry.called_at,
                sent_at=entry.sent_at,
                answered_at=now,
                worker_wait_s=trained.wait_s,
                dispatch_s=trained.dispatch_s,
                ready_s=trained.ready_s,
                idle_s=trained.idle_s,
            )
        )

    def failed(self, entry: Entry, error: Exception) -> None:
        """Notes an error at a micro-batch: those before it are trained, and the caller hears of it in its turn."""
        entry.apply(AheadEvent.FAIL)
        entry.failure = error
        self._is_halted = True

    # The caller.

    @property
    def present(self) -> StepReport | None:
        """The step that began last."""
        return self._present

    def begin_step(self, now: float) -> None:
        """Begins the next step, unless one was begun that the caller has not been given.

        Raises:
            UsageError: The present step is not over; nothing has changed.
        """
        if self._present is not None and not self.step_is_over:
            if self._is_given:
                raise self._not_over(self._present)
            return
        report = self._entries[0].report if self._entries else self._filling
        own = [entry for entry in self._entries if entry.report is report]
        report.begin(now, adopted=sum(entry.state in AHEAD for entry in own))
        self._present = report
        self._present_is_trained = self._is_given = False
        self._pass_skipped()
        self._keys.forget_before(report.number)

    def give_step(self) -> StepReport | None:
        """Gives the caller the step that was begun, or None if there is no such step."""
        if self._present is None or not self._present.pulled:
            return None
        self._is_given = True
        return self._present

    def _not_over(self, report: StepReport) -> UsageError:
        left = [trained.key for trained in self._results]
        left += [entry.key for entry in self._entries if entry.report is report]
        shown = ", ".join(repr(printable(key)) for key in left[:_SHOWN_KEYS]) or "what is not pulled yet"
        more = f" and {len(left) - _SHOWN_KEYS} more" if len(left) > _SHOWN_KEYS else ""
        return UsageError(
            f"step {report.number} is not over; left of it: {shown}{more}",
            remedy="iterate it to its end before the next one, or leave the loop's context",
        )

    @property
    def step_is_known(self) -> bool:
        """Whether it is clear that the present step exists, or that it does not."""
        has_some = self._present is not None and self._present.pulled > 0
        return has_some or self._source_has_ended or self._source_failure is not None

    @property
    def step_is_over(self) -> bool:
        """Whether the present step's results have all been taken."""
        is_last = self._source_has_ended and not self._entries
        return not self._results and (self._present_is_trained or is_last)

    @property
    def failure(self) -> Exception | None:
        """The error that it is the caller's turn to hear."""
        if self._results:
            return None
        return self._entries[0].failure if self._entries else self._source_failure

    @property
    def has_news(self) -> bool:
        """Whether the present step has a result, an end or an error to tell of."""
        return bool(self._results) or self.step_is_over or self.failure is not None

    def take_result(self) -> Trained | None:
        """Takes the next result, if there is one."""
        return self._results.popleft() if self._results else None

    # The end.

    def stop(self) -> None:
        """Begins nothing any more."""
        self._is_halted = self._is_stopped = True

    @property
    def trainer_may_hold_some(self) -> bool:
        """Whether something was staged, or given to be trained, and is not trained."""
        return any(entry.touched_trainer for entry in self._entries)

    def clear(self) -> None:
        """Lets go of all that is left."""
        for entry in self._entries:
            entry.payload = entry.failure = None
        self._source_failure = None
        self._entries.clear()
        self._results.clear()
