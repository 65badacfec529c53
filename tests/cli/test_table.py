"""Tables fit the terminal, whatever peers call things."""

from __future__ import annotations

import unicodedata

import pytest

from forebay.cli.table import table
from forebay.cli.words import size


def columns(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in line)


@pytest.mark.parametrize("key", ["k" * 500, "\u6c34" * 250, "a\u0301" * 90, "short"])
def test_no_line_is_wider_than_it_may_be(key: str) -> None:
    lines = table(("slot", "key", "queue"), [(1, key, key), (2, "b", "")], columns=40).splitlines()
    assert len(lines) == 3
    assert all(columns(unicodedata.normalize("NFC", line)) <= 40 for line in lines)


def test_what_is_cut_is_marked_and_what_fits_is_whole() -> None:
    told = table(("key", "n"), [("k" * 30, 7), ("short", 1234)], columns=20)
    assert told == "key                n\n" + "kkk...kkkkkkkk     7\n" + "short           1234\n"


def test_a_column_in_which_nothing_stands_is_left_out_but_not_that_of_a_zero() -> None:
    assert table(("a", "empty", "zero"), [("x", "", 0)], columns=80) == "a  zero\nx     0\n"


def test_a_table_without_rows_is_its_header() -> None:
    assert table(("a", "b"), [], columns=80) == "a  b\n"


def test_a_cell_drives_no_terminal() -> None:
    assert table(("a",), [("\x1b[31m\n",)], columns=80).splitlines()[1] == "\\x1b[31m\\n"


def test_keys_that_differ_at_their_end_differ_when_they_are_cut() -> None:
    first, second = table(
        ("key",), [("step-000001/micro-batch-000001",), ("step-000001/micro-batch-000002",)], columns=14
    ).splitlines()[1:]
    assert first.startswith("ste...")
    assert first != second


def test_numbers_are_never_cut() -> None:
    assert table(("key", "bytes"), [("k" * 30, 123_456_789)], columns=12).splitlines()[1] == "...kk  123456789"


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (28, "orchestrator pid 27263 on vm"),
        (24, "o...ator pid 27263 on vm"),
        (21, "...or pid 27263 on vm"),
        (15, "...or pid 27263"),
        (12, "pid 27263"),
        (3, "pid 27263"),
    ],
)
def test_of_a_peer_the_name_is_cut_and_never_the_pid(columns: int, shown: str) -> None:
    assert table(("with",), [("orchestrator pid 27263 on vm",)], columns=columns).splitlines()[1] == shown


@pytest.mark.parametrize(
    ("columns", "state", "shown"),
    [
        (29, "gone 3.4 s", "gone 3.4 s: trainer pid 30547"),
        (9, "gone 3.4 s", "gone 3.4 s: pid 30547"),
        (27, "not back", "not back: trainer pid 30547"),
        (9, "not back", "not back: pid 30547"),
    ],
)
def test_a_trainer_that_is_gone_or_not_back_is_never_shown_as_one_that_is_there(
    columns: int, state: str, shown: str
) -> None:
    cell = f"{state}: trainer pid 30547 on vm"
    assert table(("trainer",), [(cell,)], columns=columns).splitlines()[1] == shown


def test_a_long_host_is_cut_beside_a_pid_and_a_key_gives_way_to_both() -> None:
    peer = "trainer pid 4711 on ip-10-0-0-1.eu-central-1.example.org"
    (shown,) = table(("key", "with"), [("k" * 99, peer)], columns=50).splitlines()[1:]
    assert len(shown) <= 50
    assert " pid 4711 on" in shown
    assert shown.endswith("rg")
    (shown,) = table(("key", "with", "queue"), [("k" * 99, peer, "q" * 99)], columns=24).splitlines()[1:]
    assert "pid 4711" in shown
    assert len(shown) <= 24


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1 << 20, "1 MiB"),
        (3 << 29, "1.5 GiB"),
        ((1 << 30) - 1, "1024 MiB"),
    ],
)
def test_a_size_is_spelled_in_the_largest_unit_that_it_has(value: int, words: str) -> None:
    assert size(value) == words
