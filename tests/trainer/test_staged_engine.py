"""A staged engine with real JAX arrays: what is on the device, when it comes there, and what the engine gets."""

from __future__ import annotations

import contextlib
import gc
import logging
import queue as queues
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import pytest

from forebay.trainer import (
    Declined,
    NotStagedError,
    Prepared,
    PromotionError,
    Queued,
    StagedEngine,
    TrainerSettings,
    steps,
)
from forebay.wire import ClosedError, SettingError, TreeError, UsageError, WaitTimeoutError

from .engines import (
    SHAPE,
    WAIT_S,
    HandEngine,
    HeldTransfer,
    Looks,
    TrainingEngine,
    free_all,
    live,
    micro_batch,
    number_of,
    payload,
    staged,
    wait_for_on_device,
)

CAPS = pytest.mark.parametrize("cap", [1, 2, 0])
MODES = pytest.mark.parametrize("mode", ["off", "stage", "serialize"])


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """A test leaves no micro-batch on the device, and no promoter."""
    free_all()
    yield
    if live():
        # A test's frames may refer to each other through the exceptions that it has caught.
        gc.collect()
    assert live() == []
    assert "forebay-promoter" not in {thread.name for thread in threading.enumerate()}


@pytest.fixture
def others() -> Iterator[ThreadPoolExecutor]:
    """Other threads of the trainer."""
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The warnings about payloads that are not what was staged, in a process that has not given any."""
    monkeypatch.setattr(steps.mismatch_warning, "_was_given", False)
    caplog.set_level(logging.WARNING, "forebay.trainer")
    return lambda: [text for text in caplog.messages if text.startswith("STAGE_MISMATCH")]


# --- 1: what it is like to use ---


@MODES
def test_options_are_passed_on_and_outputs_returned(mode: str) -> None:
    engine = HandEngine(by_hand=True)
    with staged(engine, mode) as wrapped:
        assert wrapped.engine is engine
        assert wrapped.fwd_bwd(payload(1), loss_scale=2.0, labels=["a"]) is engine.work[0]
        engine.work[0].finish()
        assert wrapped.update(rate=0.5) is engine.work[1]
        engine.work[1].finish()
    assert engine.trained == [1]
    assert engine.options == [{"loss_scale": 2.0, "labels": ["a"]}, {"rate": 0.5}]


def test_without_a_key_the_next_in_order_is_used() -> None:
    engine = HandEngine()
    with staged(engine) as wrapped:
        for number in range(4):
            wrapped.stage_batch(payload(number), key=str(number))
        wrapped.fwd_bwd()
        wrapped.fwd_bwd(stage_key="2")
        wrapped.fwd_bwd()
        wrapped.fwd_bwd()
        with pytest.raises(NotStagedError, match="no micro-batch is staged"):
            wrapped.fwd_bwd()
    assert engine.trained == [0, 2, 1, 3]


def test_the_engine_gets_device_arrays_in_the_containers_that_were_staged() -> None:
    got: list[Any] = []
    with staged(HandEngine(inside=got.append)) as wrapped:
        wrapped.stage_batch(payload(1, more=[np.arange(3, dtype=np.int8), ("text", None)]), key="a")
        wrapped.fwd_bwd(stage_key="a")
        (batch,) = got
        assert (list(batch), batch["policy"], batch["more"][1]) == (["x", "policy", "more"], 7, ("text", None))
        assert isinstance(batch["x"], jax.Array)
        assert isinstance(batch["more"][0], jax.Array)
        assert batch["more"][0].dtype == np.int8
        assert np.asarray(batch["more"][0]).tolist() == [0, 1, 2]
        got.clear()
        del batch


def test_an_engines_own_queue_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNIX_STAGE_BATCH", "stage")
    monkeypatch.setenv("TUNIX_STAGE_MAX_DEVICE_BATCHES", "2")
    with StagedEngine(HandEngine()) as wrapped:
        assert wrapped.queue.settings == TrainerSettings(stage_batch="stage", max_device_batches=2)
        assert wrapped.stage_batch(payload(1), key="a") == Queued("a", on_device=False, replaced=False)
        assert wrapped.queue.keys == ("a",)
        wrapped.reset_staged()


def test_leaving_its_context_closes_the_queue() -> None:
    with staged(HandEngine()) as wrapped:
        wrapped.stage_batch(payload(1), key="a")
        assert repr(wrapped).startswith("StagedEngine(HandEngine, StagingQueue(stage, ['a'")
    with pytest.raises(ClosedError, match="the staging queue is closed"):
        wrapped.stage_batch(payload(2), key="b")
    with pytest.raises(ClosedError):
        wrapped.fwd_bwd(payload(2))
    with pytest.raises(ClosedError):
        wrapped.fwd_bwd(stage_key="a")


def test_closing_frees_what_waits_on_the_device() -> None:
    with staged(HandEngine(), cap=2) as wrapped:
        for number in range(3):
            wrapped.stage_batch(payload(number), key=str(number))
        wait_for_on_device(wrapped.queue, 2)
        assert live() == [0, 1]
    assert live() == [], "it is closed, but somebody may keep it"
    assert wrapped.queue.keys == ()
    wrapped.close()


@pytest.mark.parametrize("is_staged", [True, False])
def test_a_finished_batch_that_somebody_keeps_holds_nothing_on_the_device(is_staged: bool) -> None:
    with staged(HandEngine()) as wrapped:
        queue = wrapped.queue
        if is_staged:
            wrapped.stage_batch(payload(1), key="a")
        batch = queue.take("a", timeout_s=WAIT_S) if is_staged else queue.put(payload(1), timeout_s=WAIT_S)
        with batch:
            assert live() == [1]
            batch.dispatched()
            assert number_of(batch.tree) == 1
        assert live() == []


# --- 2: the modes ---


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        (
            "TUNIX_STAGE_BATCH",
            "on",
            "setting stage_batch (TUNIX_STAGE_BATCH); got on; limit off, stage, serialize",
        ),
        (
            "TUNIX_STAGE_MAX_DEVICE_BATCHES",
            "-1",
            "setting max_device_batches (TUNIX_STAGE_MAX_DEVICE_BATCHES); got -1; limit 0 to 1024",
        ),
        (
            "TUNIX_STAGE_MAX_DEVICE_BATCHES",
            "many",
            "setting max_device_batches (TUNIX_STAGE_MAX_DEVICE_BATCHES); got many; limit an integer",
        ),
    ],
)
def test_a_wrong_value_is_one_line_at_construction(
    variable: str, value: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingError) as caught:
        StagedEngine(HandEngine())
    assert str(caught.value) == named


def test_off_is_the_default_and_declines_to_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNIX_STAGE_BATCH", raising=False)
    with StagedEngine(HandEngine()) as wrapped:
        # Not even looked at: this one could never be staged.
        answer = wrapped.stage_batch(object(), key="a")
        assert isinstance(answer, Declined)
        assert answer.key == "a"
        assert "staging is off; set TUNIX_STAGE_BATCH to stage or serialize" in answer.reason
        assert wrapped.stage_batch(payload(1), key="b") == Declined("b", answer.reason)
        assert wrapped.queue.keys == ()
        assert wrapped.queue.statistics.staged == 0
        assert live() == []
        assert repr(wrapped) == "StagedEngine(HandEngine, off)"
        assert "forebay-promoter" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("key", [None, "a"])
def test_off_passes_the_very_same_payload_to_the_engine(key: str | None) -> None:
    got: list[Any] = []

    class AnyEngine:
        def fwd_bwd(self, batch: Any, **options: Any) -> Any:
            got.append((batch, options))
            return batch

        def update(self, **options: Any) -> Any:
            return options

    tree = payload(1, wide=np.zeros(2, np.int64))
    for given in (tree, object(), [1, 2]):
        with staged(AnyEngine(), "off") as wrapped:
            wrapped.stage_batch(given, key="a")
            assert wrapped.fwd_bwd(given, stage_key=key, n=1) is given
            assert wrapped.update(rate=1) == {"rate": 1}
            assert live() == []
        batch, options = got.pop()
        assert batch is given
        assert options == {"n": 1}
    assert isinstance(tree["x"], np.ndarray)


def test_off_unwraps_what_is_prepared() -> None:
    engine = HandEngine()
    with staged(engine, "off") as wrapped:
        wrapped.fwd_bwd(Prepared({"x": jax.device_put(payload(3)["x"])}))
    assert engine.trained == [3]


def test_off_says_that_it_is_off_where_no_payload_was_given() -> None:
    engine = HandEngine()
    with staged(engine, "off") as wrapped:
        wrapped.stage_batch(payload(1), key="a")
        with pytest.raises(NotStagedError, match="no micro-batch with the key 'a' is staged: staging is off"):
            wrapped.fwd_bwd(stage_key="a")
        with pytest.raises(NotStagedError, match="no micro-batch is staged: staging is off"):
            wrapped.fwd_bwd()
    assert engine.options == []


def test_stage_returns_before_the_transfer_is_complete() -> None:
    transfer = HeldTransfer()
    with staged(HandEngine(), transfer=transfer) as wrapped:
        transfer.hold(1)
        assert wrapped.stage_batch(payload(1), key="a") == Queued("a", on_device=False, replaced=False)
        transfer.wait_until_begun()
        assert wrapped.queue.statistics.promotions == 0
        transfer.let_go()
        wait_for_on_device(wrapped.queue, 1)


@CAPS
def test_serialize_returns_only_when_the_transfer_is_complete(cap: int, others: ThreadPoolExecutor) -> None:
    transfer = HeldTransfer()
    with staged(HandEngine(), "serialize", cap, transfer=transfer) as wrapped:
        transfer.hold(1)
        staging = others.submit(wrapped.stage_batch, payload(1), key="a")
        transfer.wait_until_begun()
        assert not staging.done()
        transfer.let_go()
        assert staging.result(WAIT_S) == Queued("a", on_device=True, replaced=False)
        assert wrapped.queue.statistics.promotions == 1


def test_serialize_returns_at_once_where_there_is_no_room() -> None:
    with staged(HandEngine(), "serialize", 1) as wrapped:
        assert wrapped.stage_batch(payload(1), key="a") == Queued("a", on_device=True, replaced=False)
        assert wrapped.stage_batch(payload(2), key="b") == Queued("b", on_device=False, replaced=False)
        assert wrapped.stage_batch(payload(3), key="a") == Queued("a", on_device=True, replaced=True)
        assert live() == [3]


@CAPS
@pytest.mark.parametrize("work", ["a staged step", "an inline step", "an update"])
def test_serialize_transfers_only_when_the_device_has_finished_what_was_dispatched(
    work: str, cap: int, others: ThreadPoolExecutor
) -> None:
    engine, transfer = HandEngine(by_hand=True), HeldTransfer()
    with staged(engine, "serialize", cap, transfer=transfer) as wrapped:
        if work == "a staged step":
            wrapped.stage_batch(payload(1), key="a")
            wrapped.fwd_bwd(stage_key="a")
        elif work == "an inline step":
            wrapped.fwd_bwd(payload(1))
        else:
            wrapped.fwd_bwd(payload(1))
            engine.work[0].finish()
            wrapped.update()
        staging = others.submit(wrapped.stage_batch, payload(2), key="b")
        assert engine.work[-1].waited_for.wait(WAIT_S), "the transfer did not wait for the device"
        assert transfer.issued == [1]
        assert not staging.done()
        engine.work[-1].finish()
        assert staging.result(WAIT_S) == Queued("b", on_device=True, replaced=False)
        assert transfer.issued == [1, 2]


def test_serialize_waits_for_all_that_was_dispatched(others: ThreadPoolExecutor) -> None:
    engine, transfer = HandEngine(by_hand=True), HeldTransfer()
    with staged(engine, "serialize", transfer=transfer) as wrapped:
        wrapped.stage_batch(payload(1), key="a")
        wrapped.fwd_bwd(stage_key="a")
        wrapped.update()
        wrapped.update()
        staging: Future[Any] = others.submit(wrapped.stage_batch, payload(2), key="b")
        for work in engine.work:
            assert work.waited_for.wait(WAIT_S)
            assert transfer.issued == [1]
            work.finish()
        assert staging.result(WAIT_S).on_device


def test_serialize_lets_a_steps_own_payload_wait_for_the_device_as_well(others: ThreadPoolExecutor) -> None:
    engine, transfer = HandEngine(by_hand=True), HeldTransfer()
    with staged(engine, "serialize", transfer=transfer) as wrapped:
        wrapped.fwd_bwd(payload(1))
        inline = others.submit(wrapped.fwd_bwd, payload(2))
        assert engine.work[0].waited_for.wait(WAIT_S)
        assert transfer.issued == [1]
        engine.work[0].finish()
        inline.result(WAIT_S)
        assert transfer.issued == [1, 2]
        engine.work[1].finish()


def test_serialize_hands_nothing_to_the_device_while_a_transfer_runs(others: ThreadPoolExecutor) -> None:
    engine, transfer = HandEngine(), HeldTransfer()
    with staged(engine, "serialize", 2, transfer=transfer) as wrapped:
        wrapped.stage_batch(payload(1), key="a")
        transfer.hold(2)
        staging: Future[Any] = others.submit(wrapped.stage_batch, payload(2), key="b")
        transfer.wait_until_begun()
        with pytest.raises(WaitTimeoutError, match="the transfer under way to end before work is handed"):
            wrapped.update(timeout_s=0)
        with pytest.raises(WaitTimeoutError, match="the transfer under way to end before work is handed"):
            wrapped.fwd_bwd(stage_key="a", timeout_s=0)
        assert engine.options == []
        transfer.let_go()
        assert staging.result(WAIT_S).on_device
        wrapped.update()
        wrapped.fwd_bwd(stage_key="b")
        assert engine.trained == [2]


def test_serialize_begins_no_transfer_while_work_is_handed_to_the_device() -> None:
    transfer = HeldTransfer()
    with staged(HandEngine(), "serialize", 2, transfer=transfer) as wrapped:
        looks = Looks(wrapped.queue)
        found: list[bool] = []

        def stage_and_look(_: Any) -> None:
            # It does not wait for its own dispatch to end.
            wrapped.stage_batch(payload(2), key="b")
            found.append(looks.has_work())

        wrapped.stage_batch(payload(1), key="a")
        wrapped.engine.inside = stage_and_look  # type: ignore[attr-defined]
        wrapped.fwd_bwd(stage_key="a")
        assert found == [False]
        looks.settle()
        assert transfer.issued == [1, 2]


def test_stage_overlaps_transfer_and_work() -> None:
    engine, transfer = HandEngine(by_hand=True), HeldTransfer()
    with staged(engine, "stage", transfer=transfer) as wrapped:
        wrapped.stage_batch(payload(1), key="a")
        wrapped.fwd_bwd(stage_key="a")
        wrapped.stage_batch(payload(2), key="b")
        wait_for_on_device(wrapped.queue, 1)
        transfer.hold(3)
        wrapped.stage_batch(payload(3), key="c")
        assert not engine.work[0].is_ready()
        engine.work[0].finish()
        wrapped.fwd_bwd(stage_key="b")
        transfer.wait_until_begun()
        wrapped.update()
        transfer.let_go()
        engine.work[1].finish()


# --- 3: the same bits ---

MICRO_BATCHES = 12
UPDATE_EVERY = 4


def is_inline(number: int) -> bool:
    return number % 5 == 3


def train_plainly(devices: int) -> list[bytes]:
    """Trains without Forebay."""
    engine = TrainingEngine(devices)
    for number in range(MICRO_BATCHES):
        engine.fwd_bwd(micro_batch(number), scale=number)
        if number % UPDATE_EVERY == UPDATE_EVERY - 1:
            engine.update()
    return engine.trace()


def stage_ahead(wrapped: StagedEngine, told: queues.SimpleQueue[int]) -> None:
    for number in range(MICRO_BATCHES):
        if not is_inline(number):
            wrapped.stage_batch(micro_batch(number), key=f"k{number}", timeout_s=WAIT_S)
        told.put(number)


def train_staged(devices: int, mode: str, cap: int, others: ThreadPoolExecutor) -> list[bytes]:
    """Trains with another thread that stages ahead, and with payloads of all kinds in between."""
    engine = TrainingEngine(devices)
    told: queues.SimpleQueue[int] = queues.SimpleQueue()
    with staged(engine, mode, cap, shardings=engine.programs.shardings | {"policy": None}) as wrapped:
        ahead = others.submit(stage_ahead, wrapped, told)
        for _ in range(MICRO_BATCHES):
            number = told.get(timeout=WAIT_S)
            key = None if number % 10 == 3 else f"k{number}"
            # Off has nothing but the payload; the other modes get one where it was not staged, and now and then.
            given = mode == "off" or is_inline(number) or number % 4 == 1
            wrapped.fwd_bwd(micro_batch(number) if given else None, key, scale=number)
            if number % UPDATE_EVERY == UPDATE_EVERY - 1:
                wrapped.update()
        ahead.result(WAIT_S)
        counts = wrapped.queue.statistics
        if mode != "off":
            assert (counts.taken, counts.promotions) == (10, 10 + counts.demotions)
            assert counts.inline == {"keyless": 1, "missing": 1}
        assert (counts.queued, counts.on_device, counts.in_step, counts.inline_steps) == (0, 0, 0, 0)
        assert not counts.drops
    assert engine.moved == [], "the program had to move a leaf"
    return engine.trace()


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_losses_gradients_and_weights_are_bit_identical_in_all_modes(
    devices: int, others: ThreadPoolExecutor
) -> None:
    plain = train_plainly(devices)
    assert len(set(plain)) > MICRO_BATCHES, "the micro-batches do not differ"
    for mode, cap in [("off", 1)] + [(mode, cap) for mode in ("stage", "serialize") for cap in (1, 2, 0)]:
        assert train_staged(devices, mode, cap, others) == plain, (mode, cap)


# --- 4: the cap ---


@CAPS
@pytest.mark.parametrize("mode", ["stage", "serialize"])
def test_over_the_cap_no_device_memory_is_used(mode: str, cap: int) -> None:
    payloads = [payload(number) for number in range(5)]
    with staged(HandEngine(), mode, cap) as wrapped:
        looks = Looks(wrapped.queue)
        answers = [wrapped.stage_batch(tree, key=str(number)) for number, tree in enumerate(payloads)]
        looks.settle()
        fit = cap or 5
        assert live() == list(range(fit))
        counts = wrapped.queue.statistics
        assert (counts.queued, counts.on_device, counts.promotions) == (5 - fit, fit, fit)
        for number in range(fit, 5):
            assert answers[number] == Queued(str(number), on_device=False, replaced=False)
            entry = wrapped.queue._state.books.find(str(number))
            assert entry is not None
            assert entry.on_device is None
            assert entry.placed is not None
            (leaf,) = entry.placed.tree.leaves
            assert leaf is payloads[number]["x"], "nothing was copied, not even on the host"


@CAPS
def test_the_cap_counts_the_staged_one_in_fwd_bwd_until_it_is_dispatched(cap: int) -> None:
    seen: list[tuple[int, int, int, list[int]]] = []
    with staged(HandEngine(), cap=cap) as wrapped:
        looks = Looks(wrapped.queue)

        def look(_: Any) -> None:
            looks.settle()
            counts = wrapped.queue.statistics
            seen.append((counts.in_step, counts.on_device, counts.queued, live()))

        wrapped.engine.inside = look  # type: ignore[attr-defined]
        for number in range(5):
            wrapped.stage_batch(payload(number), key=str(number))
        looks.settle()
        wrapped.fwd_bwd(stage_key="0")
        fit = cap or 5
        assert seen == [(1, fit - 1, 5 - fit, list(range(fit)))]
        looks.settle()
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
        looks = Looks(wrapped.queue)

        def look(_: Any) -> None:
            looks.settle()
            seen.append((live(), wrapped.queue.keys))

        engine.inside = look
        for number in range(3):
            wrapped.stage_batch(payload(number), key=str(number))
        looks.settle()
        wrapped.fwd_bwd(stage_key="2")
        assert seen == [([2], ("0", "1"))]
        assert wrapped.queue.statistics.demotions == 1
        looks.settle()
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


# --- 5: when the next is promoted ---


@pytest.mark.parametrize("mode", ["stage", "serialize"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_next_is_promoted_after_dispatch_by_another_thread_and_the_step_does_not_wait(
    mode: str, fails: bool
) -> None:
    found: list[bool] = []
    transfer = HeldTransfer()
    with staged(HandEngine(), mode, transfer=transfer) as wrapped:
        looks = Looks(wrapped.queue)

        def look(_: Any) -> None:
            found.append(looks.has_work())
            if fails:
                raise ArithmeticError("the engine failed")

        wrapped.engine.inside = look  # type: ignore[attr-defined]
        wrapped.stage_batch(payload(1), key="a")
        looks.settle()
        transfer.hold(2)
        wrapped.stage_batch(payload(2), key="b")
        with contextlib.suppress(ArithmeticError):
            wrapped.fwd_bwd(stage_key="a")
        # Had the step waited for that transfer, it would wait still.
        transfer.wait_until_begun()
        assert threading.current_thread() not in transfer.threads
        counts = wrapped.queue.statistics
        assert (counts.in_step, counts.on_device, counts.queued) == (0, 0, 1)
        transfer.let_go()
        looks.settle()
        assert found == [False], "not before dispatch"
        assert wrapped.queue.statistics.on_device == 1


@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_a_step_that_used_nothing_staged_has_the_next_promoted_too(
    is_prepared: bool, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Any) -> None:
        if fails:
            raise ArithmeticError("the engine failed")

    # What waits to be promoted beside such a step is an entry that did not fit before it.
    device = FullDevice(monkeypatch)
    with staged(HandEngine(inside=fail)) as wrapped:
        looks = Looks(wrapped.queue)
        wrapped.stage_batch(large(1), key="a")
        looks.settle()
        assert device.refused.acquire(timeout=WAIT_S)
        device.is_full = False
        assert not looks.has_work(), "it rests"
        given = Prepared({"x": jax.device_put(payload(2)["x"])}) if is_prepared else payload(2)
        with contextlib.suppress(ArithmeticError):
            wrapped.fwd_bwd(given)
        wait_for_on_device(wrapped.queue, 1)
        counts = wrapped.queue.statistics
        assert (counts.inline_steps, counts.failures, counts.promotions) == (0, 1, 1)
        assert wrapped.queue.keys == ("a",)


def test_after_a_step_whose_own_transfer_failed_the_next_is_promoted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    FullDevice(monkeypatch)
    with staged(HandEngine()) as wrapped:
        looks = Looks(wrapped.queue)
        wrapped.stage_batch(payload(1), key="a")
        wrapped.stage_batch(payload(2), key="b")
        looks.settle()
        with pytest.raises(PromotionError):
            wrapped.fwd_bwd(large(3), stage_key="a")
        wait_for_on_device(wrapped.queue, 1)
        assert wrapped.queue.keys == ("b",)


def test_an_exception_of_the_engine_reaches_the_caller_and_takes_the_micro_batch_along() -> None:
    def fail(_: Any) -> None:
        raise ArithmeticError("the engine failed")

    engine = HandEngine(inside=fail)
    with staged(engine) as wrapped:
        wrapped.stage_batch(payload(1), key="a")
        wrapped.stage_batch(payload(2), key="b")
        with pytest.raises(ArithmeticError, match="the engine failed"):
            wrapped.fwd_bwd(stage_key="a")
        engine.inside = None
        with pytest.raises(NotStagedError):
            wrapped.fwd_bwd(stage_key="a")
        wrapped.fwd_bwd(stage_key="b")
        assert engine.trained == [1, 2]
        wait_for_on_device(wrapped.queue, 0)


@pytest.mark.parametrize("is_on_device", [True, False])
def test_dropping_an_entry_starts_no_transfer_that_the_step_must_wait_for(
    is_on_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    transfer = HeldTransfer()
    found: list[bool] = []
    with staged(HandEngine(), transfer=transfer) as wrapped:
        looks = Looks(wrapped.queue)
        wrapped.stage_batch(payload(1), key="a")
        looks.settle()
        wrapped.stage_batch(payload(2), key="b")
        state = wrapped.queue._state

        class LinkOfAStep:
            """The transfer lock, seen at the moment in which the step asks for it."""

            def acquire(self, timeout: float) -> bool:
                found.append(looks.has_work())
                return link.acquire(timeout=timeout)

            def release(self) -> None:
                link.release()

        link = state.link
        monkeypatch.setattr(state, "link", LinkOfAStep())
        dropped = "a" if is_on_device else "b"
        wrapped.fwd_bwd(payload(3, more=True), stage_key=dropped)
        assert found == [False]
        looks.settle()
        assert transfer.issued == ([1, 3, 2] if is_on_device else [1, 3])


def test_an_entry_that_is_dropped_for_a_payload_is_off_the_device_before_that_comes(
    others: ThreadPoolExecutor,
) -> None:
    transfer = HeldTransfer()
    with staged(HandEngine(), transfer=transfer) as wrapped:
        wrapped.stage_batch(payload(1), key="a")
        wait_for_on_device(wrapped.queue, 1)
        transfer.hold(2)
        step: Future[Any] = others.submit(wrapped.fwd_bwd, payload(2, more=True), stage_key="a")
        transfer.wait_until_begun()
        assert live() == [2]
        transfer.let_go()
        step.result(WAIT_S)


# --- 6: the locks ---


def test_an_entry_on_the_device_is_popped_while_another_transfer_runs() -> None:
    engine, transfer = HandEngine(), HeldTransfer()
    with staged(engine, cap=2, transfer=transfer) as wrapped:
        wrapped.stage_batch(payload(1), key="a")
        wait_for_on_device(wrapped.queue, 1)
        transfer.hold(2)
        wrapped.stage_batch(payload(2), key="b")
        transfer.wait_until_begun()
        wrapped.fwd_bwd(stage_key="a", timeout_s=0)
        assert engine.trained == [1]
        # The bookkeeping lock is free all the while, too.
        assert wrapped.stage_batch(payload(3), key="c") == Queued("c", on_device=False, replaced=False)
        assert wrapped.queue.keys == ("b", "c")
        assert "promoting 'b'" in repr(wrapped)
        assert wrapped.queue.statistics.promotions == 1
        transfer.let_go()
        wait_for_on_device(wrapped.queue, 2)


def test_a_popped_entry_that_is_the_same_as_the_payload_does_not_wait_either() -> None:
    engine, transfer = HandEngine(), HeldTransfer()
    with staged(engine, cap=2, transfer=transfer) as wrapped:
        wrapped.stage_batch(payload(1), key="a")
        wait_for_on_device(wrapped.queue, 1)
        transfer.hold(2)
        wrapped.stage_batch(payload(2), key="b")
        transfer.wait_until_begun()
        wrapped.fwd_bwd(payload(1), stage_key="a", timeout_s=0)
        assert engine.trained == [1]
        transfer.let_go()


def test_one_transfer_runs_at_a_time(others: ThreadPoolExecutor) -> None:
    engine, transfer = HandEngine(), HeldTransfer()
    with staged(engine, cap=0, transfer=transfer) as wrapped:
        transfer.hold(1)
        wrapped.stage_batch(payload(1), key="a")
        wrapped.stage_batch(payload(2), key="b")
        transfer.wait_until_begun()
        with pytest.raises(WaitTimeoutError, match="the transfer under way to end"):
            wrapped.fwd_bwd(payload(3), timeout_s=0)
        assert transfer.issued == [1]
        inline = others.submit(wrapped.fwd_bwd, payload(4))
        transfer.let_go()
        inline.result(WAIT_S)
        wait_for_on_device(wrapped.queue, 2)
        assert sorted(transfer.issued) == [1, 2, 4]
        assert engine.trained == [4]


# --- 7: the same key again ---


def test_replaced_on_the_host_it_keeps_its_place() -> None:
    engine = HandEngine()
    with staged(engine) as wrapped:
        for number, key in enumerate("abc"):
            wrapped.stage_batch(payload(number), key=key)
        wait_for_on_device(wrapped.queue, 1)
        assert wrapped.stage_batch(payload(9), key="b") == Queued("b", on_device=False, replaced=True)
        assert wrapped.queue.keys == ("a", "b", "c")
        for _ in range(3):
            wrapped.fwd_bwd()
        assert engine.trained == [0, 9, 2]
        assert wrapped.queue.statistics.drops == {"replaced": 1}


def test_replaced_on_the_device_its_arrays_are_freed() -> None:
    engine, transfer = HandEngine(), HeldTransfer()
    with staged(engine, transfer=transfer) as wrapped:
        looks = Looks(wrapped.queue)
        wrapped.stage_batch(payload(1), key="a")
        wrapped.stage_batch(payload(2), key="b")
        looks.settle()
        assert live() == [1]
        transfer.hold(3)
        assert wrapped.stage_batch(payload(3), key="a").replaced  # type: ignore[union-attr]
        transfer.wait_until_begun()
        assert live() == [3], "the old arrays went before the new ones came"
        counts = wrapped.queue.statistics
        assert (counts.queued, counts.on_device, counts.in_step) == (2, 0, 0)
        transfer.let_go()
        looks.settle()
        counts = wrapped.queue.statistics
        assert (counts.queued, counts.on_device, counts.staged, counts.promotions) == (1, 1, 3, 2)
        assert wrapped.queue.keys == ("a", "b")
        wrapped.fwd_bwd()
        wrapped.fwd_bwd()
        assert engine.trained == [3, 2]


def test_replaced_in_mid_transfer_its_arrays_are_freed() -> None:
    engine, transfer = HandEngine(), HeldTransfer()
    with staged(engine, transfer=transfer) as wrapped:
        looks = Looks(wrapped.queue)
        transfer.hold(1)
        wrapped.stage_batch(payload(1), key="a")
        wrapped.stage_batch(payload(2), key="b")
        transfer.wait_until_begun()
        assert wrapped.stage_batch(payload(3), key="a").replaced  # type: ignore[union-attr]
        assert live() == [1]
        assert wrapped.queue.keys == ("a", "b")
        counts = wrapped.queue.statistics
        assert (counts.queued, counts.on_device, counts.drops) == (2, 0, {"replaced": 1})
        transfer.let_go()
        looks.settle()
        assert live() == [3]
        counts = wrapped.queue.statistics
        assert (counts.queued, counts.on_device, counts.staged) == (1, 1, 3)
        wrapped.fwd_bwd()
        wrapped.fwd_bwd()
        assert engine.trained == [3, 2]


def test_staged_again_while_a_step_uses_it_the_key_is_queued_anew() -> None:
    engine = HandEngine()
    with staged(engine) as wrapped:
        answers: list[Any] = []
        engine.inside = lambda _: answers.append(wrapped.stage_batch(payload(2), key="a"))
        wrapped.stage_batch(payload(1), key="a")
        wrapped.fwd_bwd(stage_key="a")
        engine.inside = None
        assert answers == [Queued("a", on_device=False, replaced=False)]
        wrapped.fwd_bwd(stage_key="a")
        assert engine.trained == [1, 2]
        assert not wrapped.queue.statistics.drops


# --- 8: what leaves the others alone ---


def test_a_keyless_payload_touches_nothing_that_is_staged() -> None:
    engine = HandEngine()
    with staged(engine) as wrapped:
        looks = Looks(wrapped.queue)
        for number, key in enumerate("abc"):
            wrapped.stage_batch(payload(number), key=key)
        looks.settle()
        before = wrapped.queue.statistics
        # The very same micro-batch as the head, too.
        for number in (7, 0):
            wrapped.fwd_bwd(payload(number))
            looks.settle()
            assert wrapped.queue.keys == ("a", "b", "c")
            assert live() == [0]
        after = wrapped.queue.statistics
        assert (after.queued, after.on_device, after.promotions) == (2, 1, before.promotions)
        assert (after.taken, after.drops, after.inline) == (0, {}, {"keyless": 2})
        for _ in range(3):
            wrapped.fwd_bwd()
        assert engine.trained == [7, 0, 0, 1, 2]


@CAPS
def test_a_key_that_is_not_the_head_is_found_and_the_others_keep_their_order(cap: int) -> None:
    engine = HandEngine()
    with staged(engine, cap=cap) as wrapped:
        for number in range(6):
            wrapped.stage_batch(payload(number), key=str(number))
        wrapped.fwd_bwd(stage_key="3")
        assert ",".join(wrapped.queue.keys) == "0,1,2,4,5"
        wrapped.fwd_bwd(payload(5), stage_key="5")
        assert ",".join(wrapped.queue.keys) == "0,1,2,4"
        for _ in range(4):
            wrapped.fwd_bwd()
        assert engine.trained == [3, 5, 0, 1, 2, 4]
        assert not wrapped.queue.statistics.inline


# --- 9: a payload and a key ---

DIFFERENT: dict[str, Any] = {
    "another leaf": {"x": payload(1)["x"], "policy": 7, "more": np.zeros(1, np.float32)},
    "no static value": {"x": payload(1)["x"]},
    "another shape": {"x": np.full((*SHAPE, 1), 1, np.float32), "policy": 7},
    "fewer rows": {"x": np.full((4, SHAPE[1]), 1, np.float32), "policy": 7},
    "another dtype": {"x": np.full(SHAPE, 1, np.int32), "policy": 7},
    "another static value": {"x": payload(1)["x"], "policy": 8},
    "an equal static value of another type": {"x": payload(1)["x"], "policy": 7.0},
    "a leaf for a static value": {"x": payload(1)["x"], "policy": np.array(7, np.int32)},
}


@pytest.mark.parametrize("what", DIFFERENT)
@pytest.mark.parametrize("is_on_device", [True, False])
def test_a_payload_that_is_not_what_was_staged_is_transferred_and_the_entry_dropped(
    what: str, is_on_device: bool, warned: Callable[[], list[str]]
) -> None:
    got: list[Any] = []
    with staged(HandEngine(inside=got.append)) as wrapped:
        looks = Looks(wrapped.queue)
        keys = ("a", "b") if is_on_device else ("b", "a")
        for key in keys:
            wrapped.stage_batch(payload(1), key=key)
        looks.settle()
        wrapped.fwd_bwd(DIFFERENT[what], stage_key="a")
        (batch,) = got
        assert batch.keys() == DIFFERENT[what].keys()
        for used, given in zip(jax.tree.leaves(batch), jax.tree.leaves(DIFFERENT[what]), strict=True):
            assert isinstance(used, jax.Array) == isinstance(given, np.ndarray)
            assert type(used) is type(given) or (used.dtype, used.shape) == (given.dtype, given.shape)
            assert np.asarray(used).tolist() == np.asarray(given).tolist()
        got.clear()
        del batch, used
        counts = wrapped.queue.statistics
        assert (counts.taken, counts.drops, counts.inline) == (0, {"mismatch": 1}, {"mismatch": 1})
        assert wrapped.queue.keys == ("b",)
        assert len(warned()) == 1


@pytest.mark.parametrize("is_on_device", [True, False])
def test_a_payload_with_the_same_structure_uses_what_was_staged_whatever_its_values(
    is_on_device: bool, warned: Callable[[], list[str]]
) -> None:
    engine = HandEngine()
    nan = float("nan")
    with staged(engine, transfer=(transfer := HeldTransfer())) as wrapped:
        looks = Looks(wrapped.queue)
        for key in ("a", "b") if is_on_device else ("b", "a"):
            wrapped.stage_batch(payload(1, reward=nan), key=key)
        looks.settle()
        same = {"reward": nan, "policy": 7, "x": np.full((*SHAPE[::-1],), 5, np.float32).T}
        wrapped.fwd_bwd(same, stage_key="a")
        assert engine.trained == [1]
        assert set(transfer.issued) == {1}
        counts = wrapped.queue.statistics
        assert (counts.taken, counts.drops, counts.inline) == (1, {}, {})
    assert warned() == []


def test_a_process_warns_of_payloads_that_differ_once(warned: Callable[[], list[str]]) -> None:
    for _ in range(2):
        with staged(HandEngine()) as wrapped:
            for key in "ab":
                wrapped.stage_batch(payload(1), key=key)
                wrapped.fwd_bwd(payload(2, more=key), stage_key=key)
            assert wrapped.queue.statistics.drops == {"mismatch": 2}
    assert len(warned()) == 1
    assert "key=a " in warned()[0]


def test_a_key_that_is_not_staged_is_an_error_that_names_it_and_those_present() -> None:
    engine = HandEngine()
    with staged(engine) as wrapped:
        for number, key in enumerate(("first", "second")):
            wrapped.stage_batch(payload(number), key=key)
        with pytest.raises(NotStagedError) as caught:
            wrapped.fwd_bwd(stage_key="third")
        assert "no micro-batch with the key 'third' is staged" in str(caught.value)
        assert "['first', 'second']" in str(caught.value)
        assert engine.options == []
        assert wrapped.queue.keys == ("first", "second")


def test_a_payload_whose_key_is_not_staged_is_transferred_and_counted(warned: Callable[[], list[str]]) -> None:
    engine = HandEngine()
    with staged(engine) as wrapped:
        wrapped.stage_batch(payload(1), key="a")
        wrapped.fwd_bwd(payload(2), stage_key="b")
        assert engine.trained == [2]
        counts = wrapped.queue.statistics
        assert (counts.inline, counts.drops, wrapped.queue.keys) == ({"missing": 1}, {}, ("a",))
    assert warned() == []


def wait_until_wanted(wrapped: StagedEngine, key: str) -> None:
    state = wrapped.queue._state
    with state.changed:
        assert state.changed.wait_for(lambda: key in state.books._wanted, WAIT_S)


def test_an_entry_that_was_replaced_while_a_step_waited_for_it_is_compared_too(
    others: ThreadPoolExecutor, warned: Callable[[], list[str]]
) -> None:
    got: list[list[str]] = []
    engine, transfer = HandEngine(inside=lambda batch: got.append(list(batch))), HeldTransfer()
    with staged(engine, transfer=transfer) as wrapped:
        transfer.hold(1)
        wrapped.stage_batch(payload(1), key="a")
        transfer.wait_until_begun()
        step: Future[Any] = others.submit(wrapped.fwd_bwd, payload(1), stage_key="a")
        wait_until_wanted(wrapped, "a")
        wrapped.stage_batch(payload(2, more=np.zeros(1, np.float32)), key="a")
        transfer.let_go()
        step.result(WAIT_S)
        assert got == [["x", "policy"]], "the engine got another kind of micro-batch than the payload"
        assert engine.trained == [1]
        assert wrapped.queue.statistics.drops == {"replaced": 1, "mismatch": 1}
        assert len(warned()) == 1


def test_a_payload_whose_entry_was_dropped_while_the_step_waited_for_it_is_transferred(
    others: ThreadPoolExecutor,
) -> None:
    engine, transfer = HandEngine(), HeldTransfer()
    with staged(engine, transfer=transfer) as wrapped:
        transfer.hold(1)
        wrapped.stage_batch(payload(1), key="a")
        transfer.wait_until_begun()
        step: Future[Any] = others.submit(wrapped.fwd_bwd, payload(2), stage_key="a")
        wait_until_wanted(wrapped, "a")
        wrapped.reset_staged()
        transfer.let_go()
        step.result(WAIT_S)
        assert engine.trained == [2]
        assert wrapped.queue.statistics.inline == {"missing": 1}


# --- 10: what is prepared ---


@pytest.mark.parametrize("leaf", [np.zeros(2, np.float32), np.float32(1), np.array(1)])
def test_a_prepared_payload_with_a_numpy_array_is_refused_by_name(leaf: Any) -> None:
    with pytest.raises(UsageError, match=r"leaf \['a'\]\[1\] of a prepared payload is not on the device"):
        Prepared({"a": [jax.device_put(np.zeros(2, np.float32)), leaf], "b": "static"})


def test_a_prepared_payload_reaches_the_engine_as_it_is_and_touches_nothing_that_is_staged() -> None:
    got: list[Any] = []
    transfer = HeldTransfer()
    with staged(HandEngine(inside=got.append), transfer=transfer) as wrapped:
        for number, key in enumerate("ab"):
            wrapped.stage_batch(payload(number), key=key)
        wait_for_on_device(wrapped.queue, 1)
        tree = {"x": jax.device_put(payload(5)["x"]), "policy": 7}
        wrapped.fwd_bwd(Prepared(tree))
        assert got.pop() is tree
        counts = wrapped.queue.statistics
        assert (counts.prepared, counts.inline, counts.drops, counts.taken) == (1, {}, {}, 0)
        assert (counts.queued, counts.on_device, counts.inline_steps) == (1, 1, 0)
        assert wrapped.queue.keys == ("a", "b")
        assert transfer.issued == [0]
        del tree


def test_a_prepared_payload_is_not_staged() -> None:
    with staged(HandEngine()) as wrapped:
        prepared = Prepared({"x": jax.device_put(payload(5)["x"])})
        answer = wrapped.stage_batch(prepared, key="a")
        assert isinstance(answer, Declined)
        assert "on the device already" in answer.reason
        assert wrapped.queue.statistics.staged == 0
        del prepared


@pytest.mark.parametrize("is_on_device", [True, False])
def test_a_prepared_payload_drops_the_entry_whose_key_it_stands_for(is_on_device: bool) -> None:
    engine, transfer = HandEngine(), HeldTransfer()
    with staged(engine, transfer=transfer) as wrapped:
        looks = Looks(wrapped.queue)
        for number, key in enumerate("ab" if is_on_device else "ba"):
            wrapped.stage_batch(payload(number), key=key)
        looks.settle()
        wrapped.fwd_bwd(Prepared({"x": jax.device_put(payload(5)["x"])}), stage_key="a")
        looks.settle()
        assert engine.trained == [5]
        counts = wrapped.queue.statistics
        assert (counts.prepared, counts.drops, counts.taken) == (1, {"prepared": 1}, 0)
        assert (counts.queued, counts.on_device) == (0, 1)
        assert wrapped.queue.keys == ("b",)
        assert live() == ([1] if is_on_device else [0])
        wrapped.fwd_bwd(Prepared({"x": jax.device_put(payload(6)["x"])}), stage_key="no such key")
        assert wrapped.queue.keys == ("b",)


# --- 11: reset ---


def test_a_reset_empties_the_queue_frees_the_device_and_starts_the_counts_anew() -> None:
    engine = HandEngine()
    with staged(engine, cap=2) as wrapped:
        looks = Looks(wrapped.queue)
        wrapped.stage_batch(payload(9), key="z")
        wrapped.fwd_bwd(stage_key="z")
        wrapped.fwd_bwd(payload(8))
        for number in range(4):
            wrapped.stage_batch(payload(number), key=str(number))
        looks.settle()
        assert live() == [0, 1]
        wrapped.reset_staged()
        assert live() == []
        assert wrapped.queue.keys == ()
        counts = wrapped.queue.statistics
        assert (counts.queued, counts.on_device, counts.in_step, counts.inline_steps) == (0, 0, 0, 0)
        assert (counts.staged, counts.taken, counts.promotions, counts.inline, counts.drops) == (0, 0, 0, {}, {})
        with pytest.raises(NotStagedError):
            wrapped.fwd_bwd(stage_key="0")
        # The same key may come again, and all the room is there again.
        for number in range(4):
            wrapped.stage_batch(payload(number + 10), key=str(number))
        looks.settle()
        assert live() == [10, 11]
        wrapped.fwd_bwd()
        assert engine.trained == [9, 8, 10]


def test_a_transfer_that_was_under_way_does_not_come_back_after_a_reset() -> None:
    engine, transfer = HandEngine(), HeldTransfer()
    with staged(engine, transfer=transfer) as wrapped:
        looks = Looks(wrapped.queue)
        transfer.hold(1)
        wrapped.stage_batch(payload(1), key="a")
        transfer.wait_until_begun()
        wrapped.reset_staged()
        assert wrapped.queue.keys == ()
        transfer.let_go()
        looks.settle()
        assert live() == []
        counts = wrapped.queue.statistics
        assert (counts.queued, counts.on_device) == (0, 0)
        wrapped.stage_batch(payload(2), key="a")
        wrapped.fwd_bwd(stage_key="a")
        assert engine.trained == [2]


def test_a_step_keeps_its_micro_batch_through_a_reset() -> None:
    engine = HandEngine()
    with staged(engine) as wrapped:

        def reset(batch: Any) -> None:
            wrapped.reset_staged()
            assert number_of(batch) == 1
            assert wrapped.queue.statistics.in_step == 1

        engine.inside = reset
        wrapped.stage_batch(payload(1), key="a")
        wrapped.stage_batch(payload(2), key="b")
        wrapped.fwd_bwd(stage_key="a")
        assert engine.trained == [1]
        counts = wrapped.queue.statistics
        assert (counts.queued, counts.on_device, counts.in_step) == (0, 0, 0)


def test_a_wait_for_an_entry_that_a_reset_drops_ends(others: ThreadPoolExecutor) -> None:
    transfer = HeldTransfer()
    with staged(HandEngine(), transfer=transfer) as wrapped:
        transfer.hold(1)
        wrapped.stage_batch(payload(1), key="a")
        transfer.wait_until_begun()
        step: Future[Any] = others.submit(wrapped.fwd_bwd, stage_key="a")
        wait_until_wanted(wrapped, "a")
        wrapped.reset_staged()
        with pytest.raises(NotStagedError, match="'a'"):
            step.result(WAIT_S)
        transfer.let_go()


# --- a device that is full ---


class FullDevice:
    """Has no room for some leaves, in the way of XLA."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = True
        self.refused = threading.Semaphore(0)
        self._put = jax.device_put
        monkeypatch.setattr("forebay.trainer.jax_transfer.jax.device_put", self)

    def __call__(self, leaf: Any, *where: Any) -> jax.Array:
        if self.is_full and leaf.shape == (3,):
            self.refused.release()
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12 bytes")
        array: jax.Array = self._put(leaf, *where)
        return array


def large(number: int) -> dict[str, Any]:
    """Makes a micro-batch whose second leaf may not fit."""
    return payload(number) | {"y": np.zeros(3, np.float32)}


@pytest.mark.parametrize("has_payload", [False, True])
def test_a_promotion_that_the_device_has_no_room_for_fails_keeps_its_place_and_succeeds_later(
    has_payload: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, engine = FullDevice(monkeypatch), HandEngine()
    with staged(engine) as wrapped:
        wrapped.stage_batch(large(1), key="a")
        assert device.refused.acquire(timeout=WAIT_S)
        wrapped.stage_batch(large(2), key="b")
        for _ in range(2):
            with pytest.raises(PromotionError, match="'a' could not be promoted: RESOURCE_EXHAUSTED") as caught:
                wrapped.fwd_bwd(large(1) if has_payload else None, stage_key="a")
            assert engine.options == []
            assert wrapped.queue.keys == ("a", "b")
            assert live() == [], "a part of it was kept"
            assert isinstance(caught.value.__cause__, jax.errors.JaxRuntimeError)
        assert wrapped.queue.statistics.failures >= 2
        assert not wrapped.queue.statistics.drops
        device.is_full = False
        wrapped.fwd_bwd(large(1) if has_payload else None, stage_key="a")
        wrapped.fwd_bwd()
        assert engine.trained == [1, 2]


def test_a_promotion_that_fails_at_its_end_keeps_no_part_either(monkeypatch: pytest.MonkeyPatch) -> None:
    transfer = HeldTransfer()
    engine = HandEngine()
    errors = [RuntimeError("RESOURCE_EXHAUSTED: while it was waited for")] * 2
    with staged(engine, transfer=transfer) as wrapped:
        looks = Looks(wrapped.queue)
        complete = transfer.complete

        def fail(placed: Any, issued: list[jax.Array]) -> Any:
            if errors:
                raise errors.pop()
            return complete(placed, issued)

        monkeypatch.setattr(transfer, "complete", fail)
        wrapped.stage_batch(payload(1), key="a")
        looks.settle()
        assert live() == []
        with pytest.raises(PromotionError, match="RESOURCE_EXHAUSTED"):
            wrapped.fwd_bwd(stage_key="a")
        assert live() == []
        wrapped.fwd_bwd(stage_key="a")
        assert engine.trained == [1]


def test_serialize_tells_of_a_failed_promotion_and_keeps_the_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    device, engine = FullDevice(monkeypatch), HandEngine()
    with staged(engine, "serialize") as wrapped:
        with pytest.raises(PromotionError, match="'a' could not be promoted: RESOURCE_EXHAUSTED"):
            wrapped.stage_batch(large(1), key="a")
        assert wrapped.queue.keys == ("a",)
        assert live() == []
        device.is_full = False
        wrapped.fwd_bwd(stage_key="a")
        assert engine.trained == [1]


def test_a_payload_of_a_steps_own_that_the_device_has_no_room_for_fails_and_changes_no_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, engine = FullDevice(monkeypatch), HandEngine()
    with staged(engine) as wrapped:
        wrapped.stage_batch(payload(9), key="k")
        wait_for_on_device(wrapped.queue, 1)
        with pytest.raises(PromotionError, match="the payload could not be transferred: RESOURCE_EXHAUSTED"):
            wrapped.fwd_bwd(large(1))
        assert live() == [9]
        counts = wrapped.queue.statistics
        assert (counts.inline_steps, counts.on_device) == (0, 1)
        device.is_full = False
        wrapped.fwd_bwd(large(1))
        assert engine.trained == [1]
        # The next is promoted, as after any other step.
        wrapped.fwd_bwd()
        assert engine.trained == [1, 9]


def test_a_micro_batch_that_can_never_be_had_is_refused_and_changes_nothing() -> None:
    engine = HandEngine()
    with staged(engine) as wrapped:
        wrapped.stage_batch(payload(1), key="a")
        for bad in ({"x": object()}, {"x": np.zeros(2, np.int64)}):
            with pytest.raises(TreeError, match=r"\['x'\]"):
                wrapped.stage_batch(bad, key="a")
            with pytest.raises(TreeError, match=r"\['x'\]"):
                wrapped.fwd_bwd(bad)
        assert wrapped.queue.keys == ("a",)
        assert (wrapped.queue.statistics.staged, wrapped.queue.statistics.drops) == (1, {})
        wrapped.fwd_bwd(stage_key="a")
        assert engine.trained == [1]
