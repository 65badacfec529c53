"""Which methods a worker offers of its engine, which run beside each other, and what the metrics hold."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.trainer.worker_methods import EngineMethods, Method, registered
from forebay.wire import UsageError

from .device_arrays import payload
from .engine_methods import MODES, DeferringEngine, methods_of
from .engines import HandEngine


def lanes(methods: EngineMethods) -> dict[str, str]:
    return {method.name: method.lane for method in methods.methods()}


def test_in_stage_the_methods_run_beside_each_other_but_for_the_update() -> None:
    methods, wrapped = methods_of(DeferringEngine())
    with wrapped:
        assert lanes(methods) == {
            "fwd_bwd": "fwd_bwd",
            "stage_batch": "stage_batch",
            "apply_deferred_update": "apply_deferred_update",
            "reset_staged": "reset_staged",
            "metrics": "metrics",
            "update": "",
        }


@pytest.mark.parametrize("mode", ["off", "serialize"])
def test_in_off_and_serialize_all_that_works_on_the_device_shares_one_line(mode: str) -> None:
    methods, wrapped = methods_of(DeferringEngine(), mode)
    with wrapped:
        assert lanes(methods) == {
            "fwd_bwd": "",
            "stage_batch": "",
            "apply_deferred_update": "",
            "reset_staged": "reset_staged",
            "metrics": "metrics",
            "update": "",
        }


def test_only_the_step_takes_a_clock() -> None:
    methods, wrapped = methods_of(DeferringEngine())
    with wrapped:
        assert [method.name for method in methods.methods() if method.is_step] == ["fwd_bwd"]


@pytest.mark.parametrize("attribute", [None, "not callable"])
def test_an_engine_without_a_deferred_update_has_no_method_for_it(attribute: Any) -> None:
    engine = HandEngine()
    engine.apply_deferred_update = attribute  # type: ignore[attr-defined]
    methods, wrapped = methods_of(engine)
    with wrapped:
        assert "apply_deferred_update" not in lanes(methods)


@MODES
def test_updates_are_passed_on_with_their_options(mode: str) -> None:
    engine = DeferringEngine()
    methods, wrapped = methods_of(engine, mode)
    with wrapped:
        offered = {method.name: method.function for method in methods.methods()}
        assert offered["update"](lr=0.5) is None
        assert offered["apply_deferred_update"](scale=2) == "applied"
    assert engine.options == [{"lr": 0.5}, {"scale": 2}]


@pytest.mark.parametrize("name", ["", "1", "a b", "a-b", "a.b", "é "])
def test_the_name_of_a_method_is_an_identifier(name: str) -> None:
    with pytest.raises(UsageError, match="an identifier"):
        registered({}, name, print, concurrent=False)


def test_the_name_of_a_method_is_not_taken_and_the_error_names_those_that_are() -> None:
    taken = {name: Method(name, print) for name in ("fwd_bwd", "mine")}
    with pytest.raises(UsageError, match=r"taken.*got mine.*fwd_bwd, mine"):
        registered(taken, "mine", print, concurrent=False)


def test_what_cannot_be_called_is_no_method() -> None:
    with pytest.raises(UsageError, match="'mine' cannot be called; got int"):
        registered({}, "mine", 3, concurrent=False)  # type: ignore[arg-type]


def test_users_methods_share_the_line_unless_they_are_concurrent() -> None:
    assert registered({}, "mine", print, concurrent=False).lane == ""
    assert registered({}, "mine", print, concurrent=True).lane == "mine"


def test_the_metrics_hold_the_calls_and_the_queues_numbers() -> None:
    methods, wrapped = methods_of(HandEngine())
    with wrapped:
        methods.stage_batch(payload(1), key="k")
        told = methods.metrics()
        assert (told["state"], told["failure"], told["calls"]) == ("ready", "", {"calls": 3})
        assert told["queue"]["staged"] == 1
