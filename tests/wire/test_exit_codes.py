"""Scripts can tell from the exit code what kind of error ended a command."""

from __future__ import annotations

import pytest

from forebay.wire import (
    EXIT_MEANINGS,
    BrokenError,
    ExitCode,
    ForebayError,
    HeldError,
    HostError,
    ProtocolError,
    RefusalCode,
    RefusedError,
    SettingError,
    UnknownNameError,
    UsageError,
    VersionMismatchError,
    WaitTimeoutError,
    exit_code,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ForebayError("x"), ExitCode.FAILED),
        (HostError("x"), ExitCode.FAILED),
        (ProtocolError("x"), ExitCode.FAILED),
        (VersionMismatchError("x"), ExitCode.FAILED),
        (UsageError("x"), ExitCode.USAGE),
        (SettingError("x"), ExitCode.USAGE),
        (HeldError("x"), ExitCode.HELD),
        (BrokenError("x"), ExitCode.NO_ANSWER),
        (WaitTimeoutError("x"), ExitCode.NO_ANSWER),
        (RefusedError(RefusalCode.NOT_ALLOWED, "x"), ExitCode.REFUSED),
        (RefusedError(RefusalCode.UNKNOWN_KEY, "x"), ExitCode.UNKNOWN),
        (UnknownNameError("x"), ExitCode.UNKNOWN),
    ],
    ids=str,
)
def test_each_kind_of_error_has_its_code(error: ForebayError, code: ExitCode) -> None:
    assert exit_code(error) is code


def test_each_code_is_explained_and_keeps_its_number() -> None:
    assert list(EXIT_MEANINGS) == list(ExitCode)
    assert [int(code) for code in ExitCode] == [0, 1, 2, 3, 4, 5, 6, 130]
