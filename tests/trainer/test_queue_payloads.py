"""A step with a payload of its own gets what was staged for its key if that is the same, and else its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from forebay.trainer import NotStagedError
from forebay.trainer.host_tree import difference, host_tree_of
from forebay.wire import default_registry

from .fake_transfer import payload
from .queue_bench import Bench, bench_of, name_in, staged_arrays
from .waiting import Call


def test_a_payload_without_a_key_leaves_all_that_is_queued_as_it_is(bench: Bench) -> None:
    bench.stage("a", "b")
    bench.watch.settle()
    with bench.queue.put(payload("a")) as batch:
        assert (batch.key, name_in(batch), batch.promote_s) == ("", "a", 0.0)
        assert bench.keys() == ("a", "b")
        assert bench.counts() == (1, 1, 0)
        assert bench.queue.statistics.inline_steps == 1
    assert bench.keys() == ("a", "b")
    assert bench.inline() == {"keyless": 1}
    assert bench.drops() == {}
    assert bench.queue.statistics.taken == 0


SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "other values of its arrays": (payload("a"), payload("a", leaf=np.ones(4, np.float32))),
    "another order of the keys": (payload("a", x=1, y=2), {"y": 2, "x": 1, **payload("a")}),
    "not a number": (payload("a", x=math.nan), payload("a", x=math.nan)),
    "another copy of a string": (payload("a", x="ab"), payload("a", x="".join(["a", "b"]))),
}
OTHER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one leaf more": (payload("a"), payload("a", more=np.zeros(1, np.int8))),
    "another key": (payload("a", x=1), payload("a", y=1)),
    "a list for a tuple": (payload("a", x=[np.zeros(1)]), payload("a", x=(np.zeros(1),))),
    "a leaf for a static value": (payload("a", x=1), payload("a", x=np.array(1))),
    "another shape": (payload("a"), payload("a", leaf=np.zeros(5, np.float32))),
    "as many elements in another shape": (payload("a"), payload("a", leaf=np.zeros((2, 2), np.float32))),
    "another dtype": (payload("a"), payload("a", leaf=np.zeros(4, np.int32))),
    "another static value": (payload("a", x=1), payload("a", x=2)),
    "True for 1": (payload("a", x=1), payload("a", x=True)),
    "1.0 for 1": (payload("a", x=1), payload("a", x=1.0)),
    "-0.0 for 0.0": (payload("a", x=0.0), payload("a", x=-0.0)),
    "None for False": (payload("a", x=False), payload("a", x=None)),
}


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("difference", SAME)
def test_a_payload_that_is_the_same_as_the_entry_gets_the_entry(
    bench: Bench, difference: str, where: str, warnings_given: Callable[[], list[str]]
) -> None:
    staged, given = SAME[difference]
    if where == "host":
        bench.stage("before")
    bench.queue.stage(staged, key="a")
    bench.watch.settle()
    with bench.queue.put(given, key="a") as batch:
        assert staged_arrays(batch).placed.tree.leaves[0] is staged["leaf"]
        assert bench.keys() == (("before",) if where == "host" else ())
    assert bench.transfer.log.count("issue a") == 1
    assert (bench.queue.statistics.taken, bench.inline(), bench.drops()) == (1, {}, {})
    assert not [line for line in warnings_given() if line.startswith("STAGE_MISMATCH")]


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("difference", OTHER)
def test_a_payload_that_differs_is_transferred_and_the_entry_dropped(
    bench: Bench, difference: str, where: str, warnings_given: Callable[[], list[str]]
) -> None:
    staged, given = OTHER[difference]
    if where == "host":
        bench.stage("before")
    bench.queue.stage(staged, key="a")
    bench.stage("after")
    bench.watch.settle()
    with bench.queue.put(given, key="a") as batch:
        assert staged_arrays(batch).placed.tree.leaves[0] is given["leaf"]
        assert batch.key == "a"
    assert bench.keys() == (("before", "after") if where == "host" else ("after",))
    assert (bench.queue.statistics.taken, bench.inline(), bench.drops()) == (0, {"mismatch": 1}, {"mismatch": 1})
    assert warnings_given() == ["STAGE_MISMATCH key=a"]


def test_a_mismatch_is_warned_of_once_in_the_process_and_counted_each_time(
    warnings_given: Callable[[], list[str]],
) -> None:
    for _ in range(2):
        with bench_of() as bench:
            for name in "ab":
                bench.stage(name)
                with bench.queue.put(payload(name, more=1), key=name):
                    pass
            assert bench.inline() == bench.drops() == {"mismatch": 2}
    assert warnings_given() == ["STAGE_MISMATCH key=a"]


def test_a_step_is_given_the_payload_if_its_entry_was_replaced_by_another_kind_while_it_waited(
    bench: Bench, warnings_given: Callable[[], list[str]]
) -> None:
    bench.hold_a_promotion("a")
    put = Call(lambda: bench.queue.put(payload("a"), key="a"))
    bench.watch.until_wanted("a")
    bench.queue.stage(payload("a", more=1), key="a")
    bench.transfer.let_go(all_after=True)
    with put.result() as batch:
        assert "more" not in batch.tree
    assert bench.inline() == {"mismatch": 1}
    assert bench.drops() == {"replaced": 1, "mismatch": 1}
    assert warnings_given() == ["STAGE_MISMATCH key=a"]


def test_a_payload_for_a_key_that_is_not_staged_is_transferred_and_counted(
    bench: Bench, warnings_given: Callable[[], list[str]]
) -> None:
    bench.stage("b")
    with bench.queue.put(payload("a"), key="a") as batch:
        assert (batch.key, name_in(batch)) == ("a", "a")
    assert bench.keys() == ("b",)
    assert (bench.inline(), bench.drops(), warnings_given()) == ({"missing": 1}, {}, [])


def test_asking_for_a_key_that_is_not_staged_names_it_and_those_that_are(bench: Bench) -> None:
    bench.stage("a", "b")
    with pytest.raises(NotStagedError) as caught:
        bench.queue.take("x")
    assert str(caught.value) == (
        "no micro-batch with the key 'x' is staged; got staged keys ['a', 'b'];"
        " stage it first, or pass it as the payload"
    )
    assert bench.keys() == ("a", "b")


def test_asking_an_empty_queue_says_so(bench: Bench) -> None:
    with pytest.raises(NotStagedError, match=r"^no micro-batch is staged; got staged keys \[\];"):
        bench.queue.take()


def test_what_is_on_the_device_already_bypasses_the_queue(bench: Bench) -> None:
    bench.stage("a", "b")
    bench.watch.settle()
    tree = {"x": object()}
    with bench.queue.bypass(tree) as batch:
        assert (batch.tree, batch.key, batch.host_bytes) == (tree, "", 0)
        assert bench.queue.statistics.inline_steps == 1
    assert bench.keys() == ("a", "b")
    assert bench.counts() == (1, 1, 0)
    assert (bench.queue.statistics.prepared, bench.inline(), bench.drops()) == (1, {}, {})
    assert bench.transfer.log == ["issue a", "complete a"]


def test_what_is_on_the_device_already_takes_the_place_of_the_entry_with_its_key(bench: Bench) -> None:
    bench.stage("a", "b")
    bench.watch.settle()
    with bench.queue.bypass({"x": 1}, key="a") as batch:
        assert batch.key == "a"
        assert bench.keys() == ("b",)
        assert "a" not in bench.transfer.live
    assert bench.drops() == {"prepared": 1}


def test_who_waits_for_a_key_hears_that_another_step_has_trained_it_by_prepared_arrays(bench: Bench) -> None:
    bench.stage("a", "b")
    with bench.queue.take("a"):
        take = Call(lambda: bench.queue.take("b"))
        bench.watch.until_wanted("b")
        bench.watch.settle()
        with bench.queue.bypass({"x": 1}, key="b"):
            assert isinstance(take.error(), NotStagedError)


@pytest.mark.parametrize(
    ("staged", "given", "words"),
    [
        (
            {"x": np.zeros(8, np.float32)},
            {"x": np.zeros(4, np.int32)},
            "leaf ['x'] is int32[4], staged was float32[8]",
        ),
        (
            {"x": np.zeros(8)},
            {"x": np.zeros(8), "y": np.zeros((), np.int8)},
            "leaf ['y'] is int8[], staged was none",
        ),
        ({"x": np.zeros(8), "y": np.zeros(1)}, {"x": np.zeros(8)}, "leaf ['y'] is missing, staged was float64[1]"),
        ({"x": np.zeros(8), "s": 1}, {"x": np.zeros(8), "s": True}, "static values or containers differ"),
    ],
)
def test_a_mismatch_says_what_is_not_the_same(staged: Any, given: Any, words: str) -> None:
    signatures = [host_tree_of(tree, default_registry).signature for tree in (staged, given)]
    assert difference(*signatures) == words
