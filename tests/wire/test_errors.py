from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import forebay.wire
from forebay.wire import (
    BrokenError,
    ForebayError,
    HostError,
    MicroBatchGoneError,
    ProtocolError,
    RefusedError,
    RemoteError,
    UsageError,
    WaitTimeoutError,
    printable,
)

ERRORS = [
    value for value in vars(forebay.wire).values() if isinstance(value, type) and issubclass(value, ForebayError)
]


@given(st.text() | st.binary() | st.lists(st.text()) | st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp"]))
def test_printable_makes_one_short_line_that_cannot_drive_a_terminal(value: object) -> None:
    shown = printable(value)
    assert shown.isprintable()
    assert len(shown) <= 203


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("key-7", "key-7"),
        ("ключ 鍵", "ключ 鍵"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("one\ntwo\rthree\t", r"one\ntwo\rthree\t"),
        ("\u202eright to left", r"\u202eright to left"),
        ("\x9b31m", r"\x9b31m"),
        ("\ud800", r"\ud800"),
        (b"\x1b", r"b'\x1b'"),
        (1.5, "1.5"),
        (None, "None"),
        (10**5000, "int too long to show"),
        ("a" * 150 + "b" * 150, "a" * 100 + "..." + "b" * 100),
    ],
    ids=range(12),
)
def test_printable_keeps_text_and_escapes_the_rest(value: object, shown: str) -> None:
    assert printable(value) == shown


def test_an_error_says_what_got_limit_and_remedy_and_keeps_them_apart() -> None:
    error = ForebayError("what", got="\x1bgot", limit=3, remedy="do this")
    assert str(error) == r"what; got \x1bgot; limit 3; do this"
    assert (error.what, error.got, error.limit, error.remedy) == ("what", "\x1bgot", 3, "do this")
    assert str(ForebayError("what")) == "what"
    assert str(ForebayError("what", got=0, limit=False)) == "what; got 0; limit False"


def test_every_error_has_one_root_and_one_fault() -> None:
    assert issubclass(ProtocolError, RemoteError)
    assert issubclass(WaitTimeoutError, BrokenError)
    assert issubclass(WaitTimeoutError, TimeoutError)
    faults = [error for error in ERRORS if error.__base__ is ForebayError]
    for error in ERRORS:
        if error is not ForebayError:
            assert sum(issubclass(error, fault) for fault in faults) == 1
    assert {UsageError, RemoteError, BrokenError, HostError} <= set(faults)


def test_a_peers_words_are_escaped_in_what_its_errors_say() -> None:
    refused = RefusedError("no_slot", "busy\x1b[2J")
    assert str(refused) == r"refused (no_slot): busy\x1b[2J"
    assert refused.code == "no_slot"
    gone = MicroBatchGoneError("k\n", "lost", "trainer died\x07")
    assert re.fullmatch(r"micro-batch 'k\\+n' is lost: trainer died\\x07", str(gone))
    assert (gone.key, gone.state, gone.reason) == ("k\n", "lost", "trainer died\x07")
