"""The page of the Python API says all that a reader needs of each public name."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import forebay
from forebay.shm import Pool


@pytest.fixture(scope="module")
def page() -> ModuleType:
    path = Path(__file__).parents[1] / "docs" / "api_page.py"
    spec = importlib.util.spec_from_file_location("api_page", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Members:
    """Some of each kind."""

    @property
    def size(self) -> int:
        """Returns it."""
        return 1

    @classmethod
    def of(cls, text: str) -> Members:
        """Makes one."""
        raise NotImplementedError(text)

    @staticmethod
    async def wait(seconds: float = 1.0) -> None:
        """Waits."""

    def plain(self, *, queue: str = "train") -> str:
        """Returns it."""
        return queue


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("size", "@property\nsize -> int"),
        ("of", "@classmethod\nof(text: str) -> Members"),
        ("wait", "@staticmethod\nasync wait(seconds: float = 1.0)"),
        ("plain", "plain(*, queue: str = 'train') -> str"),
    ],
)
def test_a_member_is_told_with_its_types_and_how_it_is_called(page: ModuleType, name: str, words: str) -> None:
    assert page.how_to_call(name, vars(Members)[name]) == words


def test_a_name_from_a_package_without_a_heading_is_named_with_what_to_do(page: ModuleType) -> None:
    with pytest.raises(LookupError, match=r"Pool of forebay\.shm\.pool has no heading; add one to _HOMES in "):
        page.heading_of(Pool)


def test_every_public_name_has_a_heading(page: ModuleType) -> None:
    told = page.api_page()
    for name in forebay.__all__:
        assert told.count(f"\n### `{name}`\n") == 1, name


def test_every_name_of_the_packages_in_a_signature_is_offered_or_told_where_it_is(page: ModuleType) -> None:
    offered, others = page.api_page().split("\n## Other names in signatures\n")
    code = "\n".join(re.findall(r"```python\n(.*?)```", offered, re.DOTALL))
    types = "\n".join(re.findall(r"(?::|->|^)([^=\n]*)", re.sub(r"'[^']*'|\.\w+", "", code), re.MULTILINE))
    listed = set(re.findall(r"^- `(\w+)`, in `forebay\.", others, re.MULTILINE))
    assert {"Peer", "SlotStatus", "StepReport", "Trainer", "Until", "WireBytes"} <= listed
    foreign = "Any Array AsyncIterable Awaitable Callable Iterator Mapping None Path T"
    named = set(re.findall(r"\b[A-Z]\w*[a-z]\w*\b|\bT\b", types))
    assert {"Batch", "Trainer", "SlotStatus"} <= named
    assert named <= listed | set(forebay.__all__) | set(foreign.split())


@pytest.mark.parametrize(
    "name",
    ["DataProtection", "LeafReport", "MicroBatchState", "Pace", "RefusalCode", "Status", "WorkerStatus"],
)
def test_what_calls_return_to_users_is_offered_by_the_package(name: str) -> None:
    found: Any = getattr(forebay, name)
    assert found.__name__ == name
    assert name in forebay.__all__
