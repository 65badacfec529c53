"""Makes the table of events from the vocabulary, and from the places in the code where each is logged."""

from __future__ import annotations

import ast
import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from forebay.wire import EVENT_MEANINGS, GONE, Event, MicroBatchState

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("wire", "shm", "sockets", "daemon", "trainer", "orchestrator_client")
WHO: Final = {
    "sockets": ("daemon", "trainer"),
    "daemon": ("daemon",),
    "trainer": ("trainer",),
    "orchestrator_client": ("orchestrator",),
}

_TELLS: Final = frozenset({"tell", "tell_object", "tell_failure", "log", "give"})
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A call that logs.

    Attributes:
        package: Where it is.
        events: What it logs.
        levels: With which level, by name.
    """

    package: str
    events: frozenset[Event]
    levels: frozenset[str]


def calls(package: str) -> Iterator[tuple[str, ast.Call]]:
    """Returns every call in a package's code, with file and line."""
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def places() -> list[Place]:
    """Returns every call that logs an event of the vocabulary."""
    return [
        place
        for package in PACKAGES
        for _, call in calls(package)
        if _name_of(call.func) in _TELLS
        for place in _places_of(package, call)
    ]


def _places_of(package: str, call: ast.Call) -> Iterator[Place]:
    if any(_is_of_state(argument) for argument in call.args):
        # Each move of a micro-batch is a detail, but that it will never be trained.
        yield Place(package, frozenset(map(Event, MicroBatchState)), frozenset({"DEBUG"}))
        yield Place(package, frozenset(map(Event, GONE)), frozenset({"WARNING"}))
    elif events := frozenset(_events_in(call)):
        yield Place(package, events, frozenset(_levels_in(call)) or frozenset({"WARNING"}))  # `OneWarning.give`


def _is_of_state(argument: ast.expr) -> bool:
    """Whether it is `EVENT_OF_STATE[batch.state]`."""
    return isinstance(argument, ast.Subscript) and _name_of(argument.value) == "EVENT_OF_STATE"


def _name_of(called: ast.expr) -> str:
    match called:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _events_in(call: ast.Call) -> Iterator[Event]:
    for argument in call.args:
        if isinstance(argument, ast.Attribute) and _name_of(argument.value) == "Event":
            yield Event[argument.attr]


def _levels_in(call: ast.Call) -> Iterator[str]:
    for argument in call.args:
        for node in ast.walk(argument):
            if isinstance(node, ast.Attribute) and node.attr in _LEVELS:
                yield node.attr


def event_rows() -> list[tuple[str, ...]]:
    """Returns a row for each event: its word, who logs it, with which levels, what it means."""
    found = places()
    return [(f"`{event}`", *_told_by(event, found), meaning) for event, meaning in EVENT_MEANINGS.items()]


def _told_by(event: Event, found: list[Place]) -> tuple[str, str]:
    own = [place for place in found if event in place.events]
    levels = {level for place in own for level in place.levels}
    who = dict.fromkeys(name for place in own for name in WHO[place.package])
    return ", ".join(who), ", ".join(sorted(levels, key=logging.getLevelNamesMapping().__getitem__))
