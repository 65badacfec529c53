"""All code logs in one way, by the vocabulary; the page of events is made from that code."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from forebay.wire import EVENT_MEANINGS, Event

DOCS = Path(__file__).parents[1] / "docs"
METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
THE_ONE_PLACE = "sockets/telling.py"


@pytest.fixture(scope="module")
def page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("events_page", DOCS / "events_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclass looks
    spec.loader.exec_module(module)
    return module


def is_a_loggers(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Name(id="log" | "logger" | "logging"), attr=method):
            return method in METHODS
        case ast.Attribute(value=ast.Attribute(attr="log" | "_log" | "logger"), attr=method):
            return method in METHODS
    return False


def test_nothing_is_logged_past_the_vocabulary(page: ModuleType) -> None:
    found = [where for package in page.PACKAGES for where, call in page.calls(package) if is_a_loggers(call)]
    assert [where.partition(":")[0] for where in found] == [THE_ONE_PLACE], found


def passes_on(call: ast.Call) -> bool:
    return any(ast.unparse(argument) in ("event", "action.event") for argument in call.args)


def test_what_is_told_is_of_the_vocabulary(page: ModuleType) -> None:
    told = [
        (where, call)
        for package in page.PACKAGES
        for where, call in page.calls(package)
        if call.args and ast.unparse(call.func).rpartition(".")[2] in ("tell", "tell_object", "tell_failure")
    ]
    assert len(told) > len(page.PACKAGES)
    assert [where for where, call in told if not passes_on(call) and not list(page._events_in(call))] == []


def test_every_event_of_the_vocabulary_that_is_logged_is_found_where_it_is(page: ModuleType) -> None:
    found = page.places()
    logged = {event for place in found for event in place.events}
    assert {Event.SERVING, Event.REFUSE, Event.READY, Event.STAGE_MISMATCH, Event.AHEAD_STALE} <= logged
    assert page._told_by(Event.HANDSHAKE_FAILED, found) == ("daemon, trainer", "INFO, WARNING")
    assert page._told_by(Event.READY, found) == ("daemon", "DEBUG")
    assert page._told_by(Event.LOST, found) == ("daemon", "DEBUG, WARNING")
    assert page._told_by(Event.STAGE_MISMATCH, found) == ("trainer", "WARNING")


def test_the_page_has_a_row_for_each_event(page: ModuleType) -> None:
    assert [row[0].strip("`") for row in page.event_rows()] == [event.value for event in EVENT_MEANINGS]
