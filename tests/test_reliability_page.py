"""The page on reliability names tests that there are, and all that are about faults."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "reliability.md"


def names_in(folder: Path) -> set[str]:
    found: set[str] = set()
    for module in folder.rglob("test_*.py"):
        found |= set(re.findall(r"^(?:async )?def (test_\w+)\(", module.read_text(), re.MULTILINE))
    return found


def test_every_test_that_the_page_names_is_there() -> None:
    named = re.findall(r"`(test_\w+)`", PAGE.read_text())
    assert named
    assert set(named) - names_in(TESTS) == set()


def test_every_test_of_a_fault_is_on_the_page() -> None:
    assert names_in(TESTS / "faults") - set(re.findall(r"`(test_\w+)`", PAGE.read_text())) == set()
