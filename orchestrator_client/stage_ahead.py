"""The stage-ahead loop: micro-batches are pulled and staged while the trainer works on those before them."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import secrets
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Self

from forebay.sockets import tell
from forebay.wire import Event, ForebayError, LocalError, RefusalCode, StaleError, UsageError, printable, words_of

from .ahead_books import AheadBooks
from .ahead_states import AheadState, Entry
from .closing import CLOSE_S, cancel_again, outlast, trouble_with
from .lanes import Lanes, Work
from .remote_errors import NotBegunError
from .results import Refusal
from .settings import OrchestratorSettings, load_orchestrator_settings
from .source import MicroBatch, Upcoming
from .step_report import StepReport, TrainStep
from .trained import Trained, Trainer

log = logging.getLogger("forebay.client")


class StageAhead:
    """Trains a source's micro-batches in order, and stages the next ones meanwhile; an async context manager.

    Iterate it for the steps, and each step to its end for what became of its micro-batches:

        async with StageAhead(trainer, source) as ahead:
            async for step in ahead:
                async for trained in step:
                    print(trained.key, trained.value)
                if step.micro_batches:  # empty if all were stale
                    await trainer.update()

    A step begins when it is asked for; its micro-batches are then trained one after another, also while the caller
    is busy with a result. Pulling and staging go on all the time. None of this is disturbed when a wait for a step
    or a result is cancelled, as long as the context is not left; the wait can be repeated.

    Leaving the context before the source's end, or by an error, cancels what is under way, and resets what is
    staged.

    Args:
        trainer: Whom to stage and to train with.
        source: Yields the micro-batches. An async generator is closed with the loop.
        settings: How many may be staged, and for how long each; default from the environment.
        across_steps: Whether micro-batches may be staged before their own step begins.
        may_cross: Asked, once, about each one that would be; if it says no, the micro-batch goes inline when it is
            its turn, and the source is asked for no more until its bytes are sent.
        clock: Returns monotonic seconds.

    Raises:
        SettingError: The environment has a wrong value.
        UsageError: The source is no async iterable.
    """

    def __init__(
        self,
        trainer: Trainer,
        source: AsyncIterable[MicroBatch],
        settings: OrchestratorSettings | None = None,
        across_steps: bool = True,
        may_cross: Callable[[Upcoming], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = load_orchestrator_settings() if settings is None else settings
        self._trainer = trainer
        if not isinstance(source, AsyncIterable):
            raise UsageError("a source", got=type(source).__name__, limit="an async iterable of MicroBatch")
        self._source: AsyncIterator[MicroBatch] = aiter(source)
        self._may_cross = may_cross
        self._clock = clock
        run = secrets.token_hex(6)
        self._books = AheadBooks(self.settings.max_staged_batches, across_steps=across_steps, run=run)
        self._lanes = Lanes(self._broke)
        self._changed = asyncio.Event()
        self._is_open = self._was_opened = self._is_awaited = False
        self._broken: BaseException | None = None
        self._failed_with = ""

    def __repr__(self) -> str:
        return f"StageAhead({self._books!r})"

    async def __aenter__(self) -> Self:
        if self._was_opened:
            raise UsageError("a stage-ahead loop is entered a second time", remedy="make another one")
        if not self._trainer.stages:
            self._books.stages_nothing()
        self._is_open = self._was_opened = True
        self._lanes.start("train", self._next_to_train)
        self._lanes.start("stage", self._next_to_stage)
        self._lanes.start("pull", self._next_to_pull)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        self._books.stop()
        self._go_on()
        closing = asyncio.create_task(self._close(error), name="forebay stage-ahead closing")
        cancelled = await outlast(closing)
        closing.result()
        if cancelled is None:
            return
        if error is None:
            raise cancelled
        if not isinstance(error, asyncio.CancelledError):
            # The first error goes on; who swallows it is cancelled at the next wait.
            cancel_again()

    # The caller.

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TrainStep:
        with self._asked():
            self._books.begin_step(self._clock())
            self._go_on()
            await self._until(lambda: self._books.step_is_known)
            report = self._books.give_step()
            if report is not None:
                return TrainStep(report, self._next_result)
            self._raise_failure()
            raise StopAsyncIteration

    async def _next_result(self, report: StepReport) -> Trained:
        with self._asked():
            if report is not self._books.present:
                raise StopAsyncIteration
            await self._until(lambda: self._books.has_news)
            result = self._books.take_result()
            if result is not None:
                return result
            if not self._books.step_is_over:
                self._raise_failure()
            raise StopAsyncIteration

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        """Lets one caller at a time ask, in the context, and not after an error."""
        self._check_open()
        if self._failed_with:
            raise UsageError(
                f"the stage-ahead loop has failed: {self._failed_with}",
                remedy="leave its context, and start another one",
            )
        if self._is_awaited:
            raise UsageError("a stage-ahead loop is iterated twice at once", remedy="iterate it from one task")
        self._is_awaited = True
        try:
            yield
        finally:
            self._is_awaited = False

    def _check_open(self) -> None:
        if not self._is_open:
            raise UsageError("a stage-ahead loop is used outside its context", remedy="use async with")

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while self._broken is None and not is_so():
            self._changed.clear()
            await self._changed.wait()
            self._check_open()
        if self._broken is not None:
            self._failed_with = words_of(self._broken)
            raise self._broken

    def _raise_failure(self) -> None:
        # Only the words are kept, and no name is given to the error: it holds the frames that it went through, and
        # what they hold.
        if self._books.failure is not None:
            self._failed_with = words_of(self._books.failure)
            raise self._books.failure

    # The lanes.

    def _go_on(self) -> None:
        self._lanes.wake()
        self._changed.set()

    def _broke(self, error: BaseException) -> None:
        self._broken = error
        self._books.stop()
        self._go_on()

    def _next_to_pull(self) -> Work | None:
        return self._pull() if self._books.may_pull else None

    async def _pull(self) -> None:
        began_at = self._clock()
        try:
            item = await anext(self._source)
            self._books.pulled(item, (began_at, self._clock()))
        except StopAsyncIteration:
            self._books.source_ended()
        except Exception as error:  # noqa: BLE001 - whatever the source raises is the caller's to hear
            self._books.source_failed(error)
        self._go_on()

    def _next_to_stage(self) -> Work | None:
        entry = self._books.to_stage()
        if entry is None or (self._books.is_early(entry) and not self._lets_cross(entry)):
            return None
        self._books.stages(entry)
        self._go_on()
        return self._stage(entry)

    def _lets_cross(self, entry: Entry) -> bool:
        try:
            may_cross = self._may_cross is None or self._may_cross(entry.upcoming())
        except Exception as error:  # noqa: BLE001 - whatever the predicate raises is the caller's to hear
            self._books.failed(entry, error)
            self._go_on()
            return False
        if not may_cross:
            self._books.held_back(entry)
        return may_cross

    async def _stage(self, entry: Entry) -> None:
        began_at = self._clock()
        try:
            answer = await self._trainer.stage(
                entry.payload,
                key=entry.key,
                timeout_s=self.settings.stage_timeout_s,
                policy_version=entry.policy_version,
                expires_s=entry.expires_s(began_at),
            )
        except Exception as error:  # noqa: BLE001 - whatever else it raises is the caller's to hear
            if isinstance(error, ForebayError) and not isinstance(error, LocalError):
                self._fall_back(entry, words_of(error))
            else:
                self._books.failed(entry, error)
        else:
            self._answered(entry, answer)
        entry.stage = (began_at, self._clock())
        self._go_on()

    def _answered(self, entry: Entry, answer: str | Refusal) -> None:
        if not isinstance(answer, Refusal):
            self._books.staged(entry)
        elif answer.code is RefusalCode.STALE:
            self._skip(entry, printable(answer.words))
        else:
            self._fall_back(entry, f"refused ({answer.code}): {printable(answer.words)}")

    def _next_to_train(self) -> Work | None:
        entry = self._books.to_train()
        while entry is not None and entry.state is AheadState.INLINE and entry.expires_at <= self._clock():
            self._skip(entry, f"stale: its time was over {self._clock() - entry.expires_at:.1f} s ago")
            self._go_on()
            entry = self._books.to_train()
        return None if entry is None else self._train(entry)

    async def _train(self, entry: Entry) -> None:
        is_inline = entry.state is AheadState.INLINE
        self._books.trains(entry, self._clock())
        self._go_on()
        try:
            trained = await self._trainer.train_step(
                entry.payload if is_inline else None,
                stage_key=entry.key,
                on_sent=partial(self._sent, entry) if is_inline else None,
            )
        except NotBegunError as error:
            if is_inline:
                self._books.failed(entry, error)
            elif error.kind == StaleError.__name__:
                self._skip(entry, printable(error.words))
            else:
                self._fall_back(entry, words_of(error))
        except Exception as error:  # noqa: BLE001 - whatever the step raises is the caller's to hear
            self._books.failed(entry, error)
        else:
            self._books.trained(entry, trained, self._clock())
        self._go_on()

    def _sent(self, entry: Entry) -> None:
        self._books.sent(entry, self._clock())
        self._go_on()

    def _fall_back(self, entry: Entry, reason: str) -> None:
        self._books.fell_back(entry, reason)
        tell(log, logging.WARNING, Event.AHEAD_FALLBACK, key=entry.key, reason=reason)

    def _skip(self, entry: Entry, reason: str) -> None:
        self._books.skipped(entry, reason)
        fields = {"key": entry.key, "policy_version": entry.policy_version, "reason": reason}
        tell(log, logging.WARNING, Event.AHEAD_STALE, **fields)

    # The end.

    async def _close(self, error: BaseException | None) -> None:
        troubles = await self._lanes.stop(CLOSE_S)
        if self._books.trainer_may_hold_some:
            troubles += await trouble_with("the reset of what is staged", self._trainer.reset_staged())
        self._books.clear()
        if inspect.isasyncgen(self._source):
            troubles += await trouble_with("the end of the source", self._source.aclose())
        for words in troubles:
            tell(log, logging.WARNING, Event.AHEAD_CLOSE, trouble=words)
            if error is not None:
                error.add_note(f"stage-ahead loop: {words}")
