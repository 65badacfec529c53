from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

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
    TreeError,
    UsageError,
    WaitTimeoutError,
    printable,
    words_of,
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


def rebuilt(error: ForebayError) -> ForebayError:
    """Makes an error anew of what a process pool would send of it."""
    reduced: Any = error.__reduce_ex__(4)
    make, arguments, *state = reduced
    again = make(*arguments)
    assert isinstance(again, ForebayError)
    if state:
        again.__setstate__(state[0])
    return again


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, rebuilt])
@pytest.mark.parametrize(
    "error",
    [
        RefusedError("no_slot", "busy\x1b[2J"),
        MicroBatchGoneError("k\n", "lost", "trainer died\x07"),
        TreeError("leaf x", got="\x1bgot", limit=3, remedy="do this"),
        WaitTimeoutError("waited", got=1.5),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_the_way_to_another_process(
    error: ForebayError, again: Callable[[ForebayError], ForebayError]
) -> None:
    copied = again(error)
    assert type(copied) is type(error)
    assert str(copied) == str(error)
    assert vars(copied) == vars(error)


class Unspeakable(Exception):  # noqa: N818 - it is no error of anybody's
    def __repr__(self) -> str:
        raise ZeroDivisionError

    def __str__(self) -> str:
        raise ZeroDivisionError


class Mute:
    """Has no repr of the right kind."""

    def __repr__(self) -> str:
        return 7  # type: ignore[return-value]


def test_what_cannot_be_shown_is_named_by_its_kind() -> None:
    assert printable(Unspeakable()) == "Unspeakable that cannot be shown"
    assert printable(Mute()) == "Mute that cannot be shown"
    assert printable([Unspeakable()]) == "list that cannot be shown"
    assert str(UsageError("a key", got=Unspeakable())) == "a key; got Unspeakable that cannot be shown"


def test_the_words_of_an_error_are_its_kind_and_one_line_of_what_it_says() -> None:
    assert words_of(Unspeakable()) == "Unspeakable"
    assert words_of(ZeroDivisionError()) == "ZeroDivisionError"
    assert words_of(ValueError("no\x1b\nmesh")) == r"ValueError: no\x1b\nmesh"
    assert words_of(KeyboardInterrupt()) == "KeyboardInterrupt"
