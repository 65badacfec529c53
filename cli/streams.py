"""The standard streams as a command finds them: one may be closed, or lead to where nothing can be written."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable

from forebay.wire import ExitCode

_INPUT, _OUTPUT, _ERRORS = range(3)
_FAULTS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EPIPE, errno.EIO, errno.EBADF})
"""Of a stream, where no file is named: of files that they open, commands tell themselves."""


def open_missing() -> None:
    """Has those that are closed lead nowhere; what is opened later would otherwise get their numbers."""
    for number in (_INPUT, _OUTPUT, _ERRORS):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the least number that is free: this one
            os.set_inheritable(number, True)
    if sys.stdout is None:
        sys.stdout = os.fdopen(_OUTPUT, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(_ERRORS, "w", closefd=False)


def with_output(run: Callable[[], int]) -> int:
    """Runs a command, and writes out all that it said; returns its exit code, or that of a failure to write."""
    try:
        code = run()
        sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or error.errno not in _FAULTS:
            raise
        if error.errno != errno.EPIPE:  # whoever reads no more knows
            say(f"standard output cannot be written ({error.strerror})")
        _lead_nowhere(_OUTPUT)
        return ExitCode.FAILED
    return code


def say(words: str) -> None:
    """Writes a line to standard error, if that takes it."""
    try:
        sys.stderr.write(f"forebay: {words}\n")
        sys.stderr.flush()
    except OSError:
        _lead_nowhere(_ERRORS)


def _lead_nowhere(number: int) -> None:
    """Gives up a stream; Python writes what is left of it at its end, and would end with a code of its own."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), number)
