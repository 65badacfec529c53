"""The stage-ahead loop within a step: what goes on beside what, how far ahead, and what it keeps in memory."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from forebay.orchestrator_client.settings import OrchestratorSettings
from forebay.orchestrator_client.source import MicroBatch
from forebay.orchestrator_client.stage_ahead import StageAhead
from forebay.orchestrator_client.step_report import TrainStep
from forebay.orchestrator_client.trained import Trained

from .ahead_desk import Desk, OnSent
from .ahead_plans import Plan, Staging, steps_of
from .ahead_runs import train_all
from .virtual_loop import now, run_virtual


def run(desk: Desk, *, across_steps: bool = True) -> list[TrainStep]:
    async def main() -> list[TrainStep]:
        return await train_all(desk, desk.loop(across_steps=across_steps))

    return run_virtual(main())


# --- order and depth ---


def test_micro_batches_are_trained_in_the_sources_order_from_what_is_staged() -> None:
    desk = Desk(steps_of(5, 4, pull_s=1, stage_s=3, ready_s=2))
    steps = run(desk)
    assert [step.number for step in steps] == [0, 1]
    assert [len(step.micro_batches) for step in steps] == [5, 4]
    assert desk.numbers("stage") == list(range(9))
    assert desk.inline == []
    assert all(step.fallbacks == () for step in steps)


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_as_many_are_staged_ahead_as_the_setting_says_and_one_more_is_pulled(depth: int) -> None:
    desk = Desk(steps_of(8, ready_s=100), max_staged=depth)

    async def main() -> None:
        async with desk.loop() as ahead:
            step = await anext(ahead)
            waiting = asyncio.create_task(anext(aiter(step)))
            await asyncio.sleep(50)
            assert desk.numbers("train") == [0]
            assert desk.numbers("staged") == list(range(depth + 1)), "the one in training counts no more"
            assert desk.numbers("pulled") == list(range(depth + 2))
            assert desk.live == list(range(depth + 2))
            waiting.cancel()

    run_virtual(main())


def test_one_staging_is_under_way_at_a_time() -> None:
    desk = Desk(steps_of(4, stage_s=8, ready_s=1), max_staged=4)
    run(desk)  # the desk refuses a second one
    assert desk.at("stage") == [0, 8, 16, 24]


def test_the_next_is_pulled_while_one_is_staged() -> None:
    desk = Desk(steps_of(3, pull_s=4, stage_s=4, ready_s=1))
    run(desk)
    assert desk.at("pull") == [0, 4, 8]
    assert desk.at("stage") == [4, 8, 12]


def test_the_next_is_dispatched_as_soon_as_the_one_before_is_done_however_slow_the_caller_is() -> None:
    desk = Desk(steps_of(4, ready_s=2))
    handed: list[float] = []

    async def main() -> None:
        async with desk.loop() as ahead:
            async for step in ahead:
                async for trained in step:
                    begun = desk.numbers("train")
                    assert begun[-1] > trained.value or trained.value == 3, (
                        "begun before the result is handed over"
                    )
                    handed.append(now())
                    await asyncio.sleep(64)

    run_virtual(main())
    assert desk.at("train") == [0, 2, 4, 6]
    assert handed == [2, 66, 130, 194]


def test_a_caller_that_blocks_the_event_loop_finds_the_next_one_under_way_before() -> None:
    desk = Desk(steps_of(3, ready_s=2))

    async def main() -> None:
        async with desk.loop() as ahead:
            async for step in ahead:
                for number in range(3):
                    await asyncio.sleep(2)  # awakes at the very moment in which a result arrives
                    result = await anext(step)
                    assert result.value == number
                    assert desk.numbers("train")[-1] == min(number + 1, 2)

    run_virtual(main())


def test_a_cancelled_wait_for_a_result_disturbs_neither_pull_nor_staging_nor_step() -> None:
    desk = Desk(steps_of(3, pull_s=8, stage_s=8, ready_s=8))

    async def main() -> None:
        async with desk.loop() as ahead:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(4):
                    await anext(ahead)
            step = await anext(ahead)
            found: list[int] = []
            while len(found) < 3:
                try:
                    async with asyncio.timeout(1):
                        found.append((await anext(step)).value)
                except TimeoutError:
                    continue
            assert found == [0, 1, 2]
            with pytest.raises(StopAsyncIteration):
                await anext(step)
            with pytest.raises(StopAsyncIteration):
                await anext(ahead)

    run_virtual(main())
    assert desk.at("pull") == [0, 8, 16]
    assert desk.at("stage") == [8, 16, 24]
    assert desk.at("train") == [16, 24, 32]
    assert desk.resets == 0


def test_a_step_that_was_begun_by_a_cancelled_wait_is_given_to_the_next_one() -> None:
    desk = Desk(steps_of(2, 1, pull_s=4, ready_s=1))

    async def main() -> None:
        async with desk.loop() as ahead:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2):
                    await anext(ahead)
            await asyncio.sleep(64)
            numbers = [[step.number, *[trained.value async for trained in step]] async for step in ahead]
            assert numbers == [[0, 0, 1], [1, 2]]

    run_virtual(main())
    assert desk.at("train") == [4, 8, 66], "the step went on meanwhile"


# --- inline ---


def test_an_inline_one_is_held_until_its_bytes_are_sent_and_nothing_is_pulled_before() -> None:
    desk = Desk(steps_of(3, send_s=4, ready_s=16), max_staged=0)
    run(desk)  # the desk lets nothing be pulled while something is held
    assert desk.at("train") == [0, 20, 40]
    assert desk.at("pull") == [0, 4, 24], "not at 20 and 40, when its training ends"


def test_a_trainer_that_never_tells_of_sent_bytes_has_told_by_its_answer() -> None:
    class Silent(Desk):
        async def train_step(
            self, payload: Any = None, stage_key: str | None = None, *, on_sent: OnSent | None = None
        ) -> Trained:
            del on_sent
            return await super().train_step(payload, stage_key)

    desk = Silent(steps_of(3, send_s=4, ready_s=16), max_staged=0)
    run(desk)
    assert desk.at("pull") == [0, 20, 40]


@pytest.mark.parametrize(("max_staged", "stages"), [(0, True), (2, False), (0, False)])
def test_with_nothing_to_be_staged_all_go_inline_and_none_counts_as_fallback(
    max_staged: int, stages: bool
) -> None:
    desk = Desk(steps_of(3, 2, pull_s=1, send_s=1), max_staged=max_staged, stages=stages)
    steps = run(desk)
    assert desk.numbers("stage") == []
    assert desk.inline == [0, 1, 2, 3, 4]
    for step in steps:
        numbers = step.metrics()
        assert (numbers["stage/fallbacks"], numbers["stage/held_back"], numbers["stage/staged"]) == (0, 0, 0)
        assert numbers["stage/inline"] == numbers["stage/micro_batches"] == len(step.micro_batches)


# --- memory ---


def test_a_payload_is_let_go_when_it_is_trained_and_not_later() -> None:
    desk = Desk(steps_of(3, ready_s=4), max_staged=1)

    async def main() -> None:
        async with desk.loop() as ahead:
            async for step in ahead:
                async for trained in step:
                    assert trained.value not in desk.live
                    assert desk.live == list(range(trained.value + 1, 3))

    run_virtual(main())
    assert desk.live == []


def test_the_payload_of_a_staged_one_is_kept_until_it_is_trained() -> None:
    desk = Desk(steps_of(2, ready_s=4))

    async def main() -> None:
        async with desk.loop() as ahead:
            step = await anext(ahead)
            await asyncio.sleep(2)
            assert desk.numbers("train") == [0]
            assert desk.live == [0, 1]
            async for _ in step:
                pass

    run_virtual(main())


def test_an_inline_payload_is_let_go_when_its_bytes_are_sent() -> None:
    desk = Desk([Plan(send_s=4, ready_s=4, ends_step=True)], max_staged=0)

    async def main() -> None:
        async with desk.loop() as ahead:
            step = await anext(ahead)
            await asyncio.sleep(3)
            assert desk.live == [0]
            await asyncio.sleep(2)
            assert desk.live == []
            assert desk.under_way == ["train"]
            async for _ in step:
                pass

    run_virtual(main())


@pytest.mark.parametrize("staging", [Staging.REFUSED, Staging.BROKEN, Staging.LATE])
def test_the_payload_of_a_fallback_is_let_go_when_its_bytes_are_sent(staging: Staging) -> None:
    desk = Desk([Plan(staging=staging, send_s=4, ready_s=4)])

    async def main() -> None:
        async with desk.loop() as ahead:
            step = await anext(ahead)
            waiting = asyncio.create_task(anext(aiter(step)))
            while "dispatch" not in {event.what for event in desk.events}:
                await asyncio.sleep(1)
            assert desk.live == []
            await waiting

    run_virtual(main())


def test_a_loop_that_goes_on_for_long_keeps_nothing_of_past_steps() -> None:
    desk = Desk(steps_of(*[3] * 100, ready_s=1))

    async def main() -> None:
        async with desk.loop() as ahead:
            async for step in ahead:
                async for _ in step:
                    assert len(desk.live) <= 3
                assert sum(len(keys) for keys in ahead._books._keys._keys.values()) <= 6
                assert len(step.micro_batches) == 3

    run_virtual(main())


# --- keys ---


def test_keys_that_are_made_name_loop_step_and_place() -> None:
    desk = Desk(steps_of(2, 1))
    run(desk)
    keys = [key for key, _ in desk.applied]
    assert len({key.split("/")[0] for key in keys}) == 1
    assert re.fullmatch("[0-9a-f]{12}", keys[0].split("/")[0])
    assert [key[12:] for key in keys] == ["/000000/0000", "/000000/0001", "/000001/0000"]


def test_two_loops_make_different_keys() -> None:
    first, second = Desk([Plan()]), Desk([Plan()])
    run(first)
    run(second)
    assert first.applied[0][0] != second.applied[0][0]


def test_a_sources_own_keys_are_kept() -> None:
    desk = Desk([Plan(key="a"), Plan(), Plan(key="b")])
    run(desk)
    keys = [key for key, _ in desk.applied]
    assert (keys[0], keys[2]) == ("a", "b")
    assert keys[1].endswith("/000000/0001")


# --- how it is used ---


def test_a_source_needs_not_be_a_generator() -> None:
    class Source:
        def __init__(self) -> None:
            self.left = 3

        def __aiter__(self) -> AsyncIterator[MicroBatch]:
            return self

        async def __anext__(self) -> MicroBatch:
            if not self.left:
                raise StopAsyncIteration
            self.left -= 1
            return MicroBatch(desk._made(2 - self.left))

    desk = Desk(steps_of(3))

    async def main() -> None:
        await train_all(desk, StageAhead(desk, Source(), desk.settings))

    run_virtual(main())


def test_the_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNIX_MAX_STAGED_BATCHES", "5")
    desk = Desk([])
    assert StageAhead(desk, desk.source()).settings == OrchestratorSettings(max_staged_batches=5)


def test_neither_loop_nor_step_shows_a_payload() -> None:
    desk = Desk([*steps_of(2, ready_s=4), Plan(key="b")])

    async def main() -> None:
        async with desk.loop() as ahead:
            step = await anext(ahead)
            await asyncio.sleep(1)
            assert re.fullmatch(
                r"StageAhead\(\['[0-9a-f]{12}/000000/0000' training, '[0-9a-f]{12}/000000/0001' staged,"
                r" 'b' staged\], 0 results\)",
                repr(ahead),
            )
            async for _ in step:
                pass
            assert repr(step) == "TrainStep(0, 2 trained)"

    run_virtual(main())
