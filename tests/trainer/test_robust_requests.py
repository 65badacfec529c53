"""Requests that cannot be, and a daemon that is away, are told; many entries are no matter."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from forebay.trainer import NotStagedError, StagingQueue
from forebay.trainer.conversation import Report
from forebay.trainer.entry_states import EntryState
from forebay.wire import (
    BrokenError,
    MicroBatchGoneError,
    TreeError,
    UsageError,
)

from .fake_transfer import payload
from .feed_desk import Desk, RecordedLink, feed_of, finished, gone, lend
from .queue_bench import Bench, bench_of, name_of_batch
from .waiting import WAIT_S, Watch

S = EntryState


# --- requests that cannot be ---

BAD_KEYS = ["", "\ud800", "a\udfff", "k" * 257, "é" * 129, 7, b"a", True, ("a",)]
BAD_TIMEOUTS = [None, "5", -1, -0.5, float("nan"), float("-inf"), [1]]


def nothing_moved(bench: Bench) -> None:
    assert bench.keys() == ("a",)
    assert bench.counts() == (0, 1, 0)
    assert (bench.inline(), bench.drops()) == ({}, {})
    numbers = bench.queue.statistics
    assert (numbers.staged, numbers.taken, numbers.prepared, numbers.inline_steps) == (1, 0, 0, 0)
    books = bench.queue._parts.books
    assert (books._takers, dict(books._wanted)) == (0, {})
    assert bench.transfer.log == ["issue a", "complete a"]


@pytest.mark.parametrize("call", ["stage", "take", "put", "bypass"])
@pytest.mark.parametrize("key", BAD_KEYS, ids=range(len(BAD_KEYS)))
def test_what_is_no_key_is_refused_and_nothing_moves(bench: Bench, call: str, key: Any) -> None:
    bench.stage_on_device("a")
    calls: dict[str, Callable[[], object]] = {
        "stage": lambda: bench.queue.stage(payload("x"), key=key),
        "take": lambda: bench.queue.take(key),
        "put": lambda: bench.queue.put(payload("x"), key=key),
        "bypass": lambda: bench.queue.bypass({}, key=key),
    }
    with pytest.raises(
        UsageError, match=r"^the key of a micro-batch; got .*limit text of 1 to 256 bytes of UTF-8; "
    ):
        calls[call]()
    nothing_moved(bench)


def test_nothing_is_staged_without_a_key(bench: Bench) -> None:
    bench.stage_on_device("a")
    with pytest.raises(UsageError, match="was staged without a key"):
        bench.queue.stage(payload("x"), key=None)  # type: ignore[arg-type]
    nothing_moved(bench)


@pytest.mark.parametrize("key", ["k" * 256, "é" * 128, "\n"], ids=range(3))
def test_what_is_just_a_key_is_one(bench: Bench, key: str) -> None:
    bench.queue.stage(payload("x"), key=key)
    assert name_of_batch(bench.queue.take(key, timeout_s=WAIT_S)) == "x"


@pytest.mark.parametrize("call", ["stage", "take", "put"])
@pytest.mark.parametrize("timeout_s", BAD_TIMEOUTS, ids=map(repr, BAD_TIMEOUTS))
def test_what_is_no_timeout_is_refused_and_nothing_moves(bench: Bench, call: str, timeout_s: Any) -> None:
    bench.stage_on_device("a")
    calls: dict[str, Callable[[], object]] = {
        "stage": lambda: bench.queue.stage(payload("x"), key="x", timeout_s=timeout_s),
        "take": lambda: bench.queue.take("a", timeout_s=timeout_s),
        "put": lambda: bench.queue.put(payload("a"), key="a", timeout_s=timeout_s),
    }
    with pytest.raises(UsageError, match=r"^a timeout.*limit 0 s or more"):
        calls[call]()
    nothing_moved(bench)


def deep(levels: int) -> Any:
    tree: Any = np.zeros(1, np.int8)
    for _ in range(levels):
        tree = [tree]
    return tree


def endless() -> Any:
    tree: list[Any] = []
    tree.append(tree)
    return tree


@pytest.mark.parametrize("call", ["stage", "put", "put with a key"])
@pytest.mark.parametrize(
    "tree", [deep(5000), endless(), {"x": endless()}], ids=["deep", "endless", "endless in x"]
)
def test_a_payload_without_a_bottom_is_refused_and_nothing_moves(bench: Bench, call: str, tree: Any) -> None:
    bench.stage_on_device("a")
    calls: dict[str, Callable[[], object]] = {
        "stage": lambda: bench.queue.stage(tree, key="x"),
        "put": lambda: bench.queue.put(tree),
        "put with a key": lambda: bench.queue.put(tree, key="a"),
    }
    with pytest.raises(TreeError, match="nested too deeply, or holds itself"):
        calls[call]()
    nothing_moved(bench)


# --- a daemon that is away, was replaced, or says that a key is gone ---


def test_what_is_raised_after_the_link_failed_does_not_grow(link: RecordedLink, queue: StagingQueue) -> None:
    link.broken(BrokenError("the daemon speaks in riddles"))
    frames: set[int] = set()
    for _ in range(50):
        with pytest.raises(BrokenError, match="riddles") as caught:
            queue.take("a")
        frames.add(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(frames) == 1


@pytest.fixture
def said_later(link: RecordedLink, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Report]]:
    """Has reports made only when a test says so, as a link does that is busy; returns how."""
    makers: list[Callable[[], Report | None]] = []
    monkeypatch.setattr(link, "report", makers.append)
    return lambda: [report for make in makers if (report := make()) is not None]


def test_a_release_that_is_said_when_its_pool_was_replaced_is_left_out(
    link: RecordedLink, desk: Desk, said_later: Callable[[], list[Report]]
) -> None:
    desk.feed.lent(lend("a", 3, 7))
    desk.promote("a")
    link.attached("another", same_pool=False)
    assert said_later() == []


def test_an_end_that_is_said_when_its_pool_was_replaced_names_no_slot(
    link: RecordedLink, desk: Desk, said_later: Callable[[], list[Report]]
) -> None:
    desk.feed.lent(lend("a", 3, 7))
    entry = desk.begin("a")
    entry.origin.read()
    desk.books.rejected(entry, TreeError("no such class"), "no such class")
    link.attached("another", same_pool=False)
    assert said_later() == [finished("a", -1, 0, reason="no such class")]


def test_a_release_and_an_end_that_are_said_late_in_the_same_pool_name_their_slot(
    link: RecordedLink, desk: Desk, said_later: Callable[[], list[Report]]
) -> None:
    desk.feed.lent(lend("a", 3, 7))
    entry = desk.begin("a")
    entry.origin.read()
    desk.books.rejected(entry, TreeError("no such class"), "no such class")
    link.attached("pool", same_pool=True)
    assert said_later() == [finished("a", 3, 7, reason="no such class")]


def test_all_who_wait_for_a_key_hear_that_it_is_gone(link: RecordedLink, queue: StagingQueue) -> None:
    watch = Watch(queue)
    with ThreadPoolExecutor(2) as pool:
        # Longer than the test waits: a wait that only ends by its timeout has heard nothing.
        takes = [pool.submit(queue.take, "a", timeout_s=2 * WAIT_S) for _ in range(2)]
        watch.until_wanted("a", by=2)
        feed_of(queue).gone(gone("a"))
        for take in takes:
            with pytest.raises(MicroBatchGoneError, match="'a' is consumed"):
                take.result(WAIT_S)
    assert link.last_demand() == (1, (), True)


# --- many ---


@pytest.mark.slow
def test_many_entries_without_a_cap_are_all_promoted_and_taken_in_order() -> None:
    count = 20_000
    names = [str(number) for number in range(count)]
    with bench_of(cap=0) as bench:
        bench.stage(*names)
        bench.watch.until(lambda: bench.queue._parts.books.totals.promotions == count)
        assert bench.keys() == tuple(names)
        assert bench.transfer.log[::2] == [f"issue {name}" for name in names]
        assert [batch_key(bench.queue) for _ in names] == names
        assert bench.counts() == (0, 0, 0)


def batch_key(queue: StagingQueue) -> str:
    with queue.take(timeout_s=WAIT_S) as batch:
        return batch.key


def test_who_asks_for_what_is_not_staged_is_shown_the_first_of_many_keys(bench: Bench) -> None:
    bench.stage(*(f"k{number}" for number in range(1000)))
    with pytest.raises(NotStagedError) as caught:
        bench.queue.take("x")
    error = caught.value
    assert error.got == f"staged keys {[f'k{number}' for number in range(16)]} and 984 more"
    assert "['k0', 'k1', 'k2'" in str(error)
    assert "and 984 more" in str(error)
    assert str(error).startswith("no micro-batch with the key 'x' is staged; got ")
