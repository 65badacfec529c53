"""No more micro-batches than the cap are on the device, whatever the trainer does."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.trainer import Queued

from .device_arrays import live, payload
from .engines import CAPS, HandEngine, staged, wait_for_on_device
from .waiting import WAIT_S, Watch

pytestmark = pytest.mark.usefixtures("nothing_is_left")


@CAPS
@pytest.mark.parametrize("mode", ["stage", "serialize"])
def test_over_the_cap_no_device_memory_is_used(mode: str, cap: int) -> None:
    payloads = [payload(number) for number in range(5)]
    with staged(HandEngine(), mode, cap) as wrapped:
        watch = Watch(wrapped.queue)
        answers = [wrapped.stage_batch(tree, key=str(number)) for number, tree in enumerate(payloads)]
        watch.settle()
        fit = cap or 5
        assert live() == list(range(fit))
        counts = wrapped.queue.statistics
        assert (counts.queued, counts.on_device, counts.promotions) == (5 - fit, fit, fit)
        for number in range(fit, 5):
            assert answers[number] == Queued(str(number), on_device=False, replaced=False)
            entry = wrapped.queue._parts.books.find(str(number))
            assert entry is not None
            assert entry.on_device is None
            assert entry.placed is not None
            (leaf,) = entry.placed.tree.leaves
            assert leaf is payloads[number]["x"], "nothing was copied, not even on the host"


@CAPS
def test_the_cap_counts_the_staged_one_in_fwd_bwd_until_it_is_dispatched(cap: int) -> None:
    seen: list[tuple[int, int, int, list[int]]] = []
    with staged(HandEngine(), cap=cap) as wrapped:
        watch = Watch(wrapped.queue)

        def look(_: Any) -> None:
            watch.settle()
            counts = wrapped.queue.statistics
            seen.append((counts.in_step, counts.on_device, counts.queued, live()))

        wrapped.engine.inside = look  # type: ignore[attr-defined]
        for number in range(5):
            wrapped.stage_batch(payload(number), key=str(number))
        watch.settle()
        wrapped.fwd_bwd(stage_key="0")
        fit = cap or 5
        assert seen == [(1, fit - 1, 5 - fit, list(range(fit)))]
        watch.settle()
        counts = wrapped.queue.statistics
        assert (counts.in_step, counts.on_device) == (0, min(fit, 4))
        assert live() == list(range(1, 1 + min(fit, 4)))


def test_an_inline_step_does_not_count_towards_the_cap() -> None:
    found: list[list[int]] = []
    with staged(HandEngine(inside=lambda _: found.append(live()))) as wrapped:
        wrapped.stage_batch(payload(1), key="a")
        wait_for_on_device(wrapped.queue, 1)
        wrapped.fwd_bwd(payload(2))
        assert found == [[1, 2]]
        assert live() == [1]
        assert wrapped.queue.statistics.on_device == 1


def test_after_dispatch_the_next_is_promoted() -> None:
    engine = HandEngine(by_hand=True)
    with staged(engine) as wrapped:
        for number in range(3):
            wrapped.stage_batch(payload(number), key=str(number))
        wait_for_on_device(wrapped.queue, 1)
        wrapped.fwd_bwd(stage_key="0")
        wait_for_on_device(wrapped.queue, 1)
        assert live() == [0, 1], "the one that runs, and the next"
        engine.work[0].finish()
        assert live() == [1]


def test_a_key_out_of_order_demotes_the_waiting_one_rather_than_exceed_the_cap() -> None:
    seen: list[tuple[list[int], tuple[str, ...]]] = []
    engine = HandEngine()
    with staged(engine) as wrapped:
        watch = Watch(wrapped.queue)

        def look(_: Any) -> None:
            watch.settle()
            seen.append((live(), wrapped.queue.keys))

        engine.inside = look
        for number in range(3):
            wrapped.stage_batch(payload(number), key=str(number))
        watch.settle()
        wrapped.fwd_bwd(stage_key="2")
        assert seen == [([2], ("0", "1"))]
        assert wrapped.queue.statistics.demotions == 1
        watch.settle()
        assert live() == [0]
        wrapped.fwd_bwd()
        wrapped.fwd_bwd()
        assert engine.trained == [2, 0, 1]
        assert [numbers for numbers, _ in seen] == [[2], [0], [1]]


@pytest.mark.parametrize("cap", [1, 2, 3])
def test_a_transfer_waits_until_no_more_than_cap_and_one_micro_batches_have_their_inputs_on_the_device(
    cap: int,
) -> None:
    engine = HandEngine(by_hand=True)
    with staged(engine, cap=cap) as wrapped:
        for number in range(12):
            wrapped.stage_batch(payload(number), key=str(number))
        wait_for_on_device(wrapped.queue, cap)
        wrapped.fwd_bwd()
        for number in range(1, 12 - cap):
            wait_for_on_device(wrapped.queue, cap)
            assert live() == list(range(number - 1, number + cap)), "those that wait, and the one that runs"
            wrapped.fwd_bwd()
            oldest = engine.work[number - 1]
            assert oldest.waited_for.wait(WAIT_S), "the next transfer does not wait for the oldest work"
            assert len(live()) == cap + 1
            oldest.finish()
        for work in engine.work:
            work.finish()


@pytest.mark.parametrize("cap", [1, 2, 3])
def test_a_trainer_that_never_waits_has_no_more_than_the_inputs_of_cap_and_one_micro_batches_on_the_device(
    cap: int,
) -> None:
    counts: list[int] = []

    def count() -> None:
        counts.append(len(live()))

    # The slowest device there is: it finishes only what somebody waits for.
    engine = HandEngine(by_hand=True, when_waited_for=count)
    with staged(engine, cap=cap) as wrapped:
        for number in range(20):
            wrapped.stage_batch(payload(number), key=str(number))
        for number in range(20):
            wrapped.fwd_bwd(stage_key=str(number))
            count()
        assert engine.trained == list(range(20))
        assert max(counts) <= cap + 1
        for work in engine.work:
            work.finish()
