"""No decision depends on what time it is: a clock that is set, or runs wild, changes nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import forebay

PACKAGES = ("wire", "shm", "sockets", "daemon", "trainer", "orchestrator_client")
ROOT = Path(forebay.__file__).parent
FOR_PEOPLE = {
    ("shm/locks.py", "strftime"),
    ("sockets/log_lines.py", "gmtime"),
    ("daemon/pages.py", "time"),
    *(("daemon/notify.py", name) for name in ("strftime", "gmtime", "time")),
}
"""Who tells people: a lock file, a line of the log, systemd until when a daemon drains, Prometheus its start."""
MONOTONIC = {
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "sleep",
    "process_time",
    "thread_time",
}


def names_of_time(tree: ast.AST) -> Iterator[str]:
    """Yields all that is taken from `time`, and `datetime` where that is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time":
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime"):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name == "datetime")


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_but_what_people_read_asks_what_time_it_is(package: str) -> None:
    modules = sorted((ROOT / package).rglob("*.py"))
    assert modules
    for module in modules:
        name = str(module.relative_to(ROOT))
        asked = set(names_of_time(ast.parse(module.read_text()))) - MONOTONIC
        assert {(name, what) for what in asked} <= FOR_PEOPLE


def test_such_a_module_would_be_found() -> None:
    assert list(names_of_time(ast.parse("import time\ndeadline = time.time() + 3"))) == ["time"]
    assert list(names_of_time(ast.parse("from time import time"))) == ["time"]
    assert list(names_of_time(ast.parse("import datetime"))) == ["datetime"]
