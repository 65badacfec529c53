"""A trainer that is made up, the source that feeds it, and a ledger of what was trained.

Both follow one plan for each micro-batch. What the trainer does with a key is what a real one does: a step uses
what is staged under the key, else the payload; from then on the key is trained, and what lands for it later is
thrown away. What must hold at every moment is checked at every moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from forebay.orchestrator_client.results import Refusal
from forebay.orchestrator_client.settings import OrchestratorSettings
from forebay.orchestrator_client.source import MicroBatch, Upcoming
from forebay.orchestrator_client.stage_ahead import StageAhead
from forebay.orchestrator_client.trained import Trained
from forebay.wire import BrokenError, RefusalCode, WaitTimeoutError

from .ahead_plans import BugError, Event, Payload, Plan, Staging, not_begun
from .virtual_loop import now

OnSent = Callable[[], None]


class Desk:
    """A trainer and a source.

    Args:
        plans: Of each micro-batch, in order.
        max_staged: Setting of the loop.
        stages: Whether the trainer takes micro-batches ahead.
        timeout_s: Setting of the loop.

    Attributes:
        applied: Key and number of each micro-batch that the device was given, in order.
        events: What happened, in order.
        fresh: Policy version and remaining seconds that each staging was told.
    """

    def __init__(
        self, plans: list[Plan], *, max_staged: int = 2, stages: bool = True, timeout_s: float = 64.0
    ) -> None:
        self.plans = plans
        self.settings = OrchestratorSettings(max_staged_batches=max_staged, stage_timeout_s=timeout_s)
        self.stages = stages
        self.applied: list[tuple[str, int]] = []
        self.events: list[Event] = []
        self.inline: list[int] = []
        self.fresh: list[tuple[int | None, float | None]] = []
        self.asked: list[Upcoming] = []
        self.thrown_away: list[str] = []
        self.resets = 0
        self.reset_s = 0.0
        self.reset_error: Exception | None = None
        self.under_way: list[str] = []
        self.update_s = 0.0
        self._staged: dict[str, int] = {}
        self._trained: set[str] = set()
        self._landing: list[asyncio.TimerHandle] = []
        self._live: weakref.WeakSet[Payload] = weakref.WeakSet()
        self._staging: int | None = None
        self._answered: set[int] = set()  # staged, by the trainer's answer, and not in training
        self._training: int | None = None
        self._training_is_staged = False
        self._done_at: float | None = None

    def loop(
        self, *, across_steps: bool = True, may_cross: Callable[[Upcoming], bool] | None = None
    ) -> StageAhead:
        """Returns a loop over the desk's own source, in its clock."""
        clock = asyncio.get_running_loop().time
        return StageAhead(self, self.source(), self.settings, across_steps, may_cross, clock)

    async def drain(self, found: list[int], loop: StageAhead | None = None, **options: Any) -> None:
        """Trains everything; what is found before an error is kept."""
        async with loop or self.loop(**options) as ahead:
            async for step in ahead:
                async for trained in step:
                    found.append(trained.value)  # noqa: PERF401 - a comprehension would lose it

    def predicate(self, upcoming: Upcoming) -> bool:
        """Answers as planned."""
        self.asked.append(dataclasses.replace(upcoming, payload=None))  # the desk keeps no payload
        number: int = upcoming.payload.number
        return self.plans[number].may_cross

    # What can be asked afterwards.

    def at(self, what: str) -> list[float]:
        """Returns when something happened to each micro-batch, in the order in which it did."""
        return [event.at for event in self.events if event.what == what]

    def numbers(self, what: str) -> list[int]:
        """Returns to which micro-batches something happened, in order."""
        return [event.number for event in self.events if event.what == what]

    @property
    def live(self) -> list[int]:
        """The payloads that somebody has."""
        return sorted(payload.number for payload in self._live)

    @property
    def staged_keys(self) -> list[str]:
        """What is staged at the trainer."""
        return list(self._staged)

    # What must hold at every moment.

    def _note(self, what: str, number: int) -> None:
        self.events.append(Event(now(), what, number))
        ahead = self._answered | ({self._staging} - {None})
        assert len(ahead) <= (self.settings.max_staged_batches if self.stages else 0), self.events
        beyond = [number for number in self.live if number != self._training]
        assert len(beyond) <= (self.settings.max_staged_batches if self.stages else 0) + 1, (beyond, self.events)

    def _check_pull(self) -> None:
        """While one is held that is not staged, nothing is pulled."""
        with_trainer = self._answered | {self._staging}
        if self._training_is_staged:
            with_trainer |= {self._training}
        assert set(self.live) <= with_trainer, (self.live, with_trainer, self.events)

    @contextlib.contextmanager
    def _call(self, name: str) -> Iterator[None]:
        assert name not in self.under_way, f"{name} twice at once"
        self.under_way.append(name)
        try:
            yield
        finally:
            self.under_way.remove(name)

    # The source.

    async def source(self) -> AsyncIterator[MicroBatch]:
        """Yields the micro-batches, and keeps none."""
        for number, plan in enumerate(self.plans):
            with self._call("pull"):
                self._check_pull()
                self._note("pull", number)
                await asyncio.sleep(plan.pull_s)
            yield MicroBatch(self._made(number), plan.key, plan.ends_step, plan.policy_version, plan.expires_s)

    def _made(self, number: int) -> Payload:
        payload = Payload(number)
        self._live.add(payload)
        self._note("pulled", number)
        return payload

    # The trainer.

    async def stage(
        self,
        payload: Any,
        *,
        key: str,
        timeout_s: float,
        policy_version: int | None,
        expires_s: float | None,
    ) -> str | Refusal:
        number: int = payload.number
        self.fresh.append((policy_version, expires_s))
        plan = self.plans[number]
        with self._call("stage"):
            self._staging = number
            self._note("stage", number)
            try:
                await asyncio.sleep(min(plan.stage_s, timeout_s))
                answer = self._answer_to(key, number, timeout_s)
            except BaseException:
                if plan.staging is Staging.LATE:
                    self._lands_later(plan.land_s, key, number)
                raise
            finally:
                self._staging = None
            if isinstance(answer, str):
                self._answered.add(number)
            self._note("staged", number)
            return answer

    def _answer_to(self, key: str, number: int, timeout_s: float) -> str | Refusal:
        match self.plans[number].staging:
            case Staging.REFUSED:
                return Refusal(key, RefusalCode.NO_SLOT, "all slots are taken")
            case Staging.STALE:
                return Refusal(key, RefusalCode.STALE, "stale: policy version 1 is 2 behind 3, limit 1")
            case Staging.BROKEN:
                raise BrokenError("the daemon stopped")
            case Staging.LATE:
                raise WaitTimeoutError(f"{key} was not staged in {timeout_s} s")
            case Staging.BUG:
                raise BugError("in stage")
            case Staging.OK:
                self._land(key, number)
        return key

    def _lands_later(self, after_s: float, key: str, number: int) -> None:
        self._landing.append(asyncio.get_running_loop().call_later(after_s, self._land, key, number))

    def _land(self, key: str, number: int) -> None:
        if key in self._trained:
            self.thrown_away.append(key)
        else:
            self._staged[key] = number

    async def train_step(
        self, payload: Any = None, stage_key: str | None = None, *, on_sent: OnSent | None = None
    ) -> Trained:
        assert stage_key is not None
        with self._call("train"):
            number: int = self._staged[stage_key] if payload is None else payload.number
            self._training, self._training_is_staged = number, payload is None
            self._answered.discard(number)
            self._note("train", number)
            try:
                source = "inline"
                if payload is None:
                    source = "staged"
                    await self._lose(stage_key, number)
                else:
                    self.inline.append(number)
                    await asyncio.sleep(self.plans[number].send_s)
                    if stage_key in self._staged:
                        source = "staged"
                    del payload
                    if on_sent is not None:
                        on_sent()
                return await self._train(stage_key, number, source)
            finally:
                self._training = None

    async def _lose(self, key: str, number: int) -> None:
        if self.plans[number].is_stale:
            del self._staged[key]
            raise not_begun(f"micro-batch {key} is dropped: stale", "StaleError")
        if self.plans[number].is_lost:
            await asyncio.sleep(self.plans[number].wait_s)
            del self._staged[key]
            raise not_begun(f"{key} was lost")

    async def _train(self, key: str, number: int, source: str) -> Trained:
        plan = self.plans[number]
        self._staged.pop(key, None)
        self._trained.add(key)
        await asyncio.sleep(plan.wait_s)
        idle_s = 0.0 if self._done_at is None else now() - self._done_at
        self.applied.append((key, number))
        self._note("dispatch", number)
        await asyncio.sleep(plan.ready_s)
        self._done_at = now()
        self._note("ready", number)
        if plan.step_error:
            raise BugError(plan.step_error)
        await asyncio.sleep(plan.back_s)
        self._note("done", number)
        return Trained(
            key=key,
            value=number,
            source=source,
            wait_s=plan.wait_s,
            dispatch_s=plan.dispatch_s,
            ready_s=plan.ready_s,
            idle_s=idle_s,
        )

    async def reset_staged(self) -> None:
        with self._call("reset"):
            assert self.under_way == ["reset"]
            self.resets += 1
            await asyncio.sleep(self.reset_s)
            if self.reset_error is not None:
                raise self.reset_error
            self._staged.clear()
            for landing in self._landing:
                landing.cancel()

    async def update(self) -> None:
        with self._call("update"):
            self.events.append(Event(now(), "update", -1))
            await asyncio.sleep(self.update_s)
