"""With which code a process ends, for scripts: by the kind of error, as errors are by whose fault."""

from __future__ import annotations

import enum

from .errors import BrokenError, ForebayError, HeldError, RefusedError, UnknownNameError, UsageError
from .states import RefusalCode


class ExitCode(enum.IntEnum):
    """How a command ended."""

    OK = 0
    FAILED = 1
    USAGE = 2
    HELD = 3
    NO_ANSWER = 4
    REFUSED = 5
    UNKNOWN = 6
    INTERRUPTED = 130


EXIT_MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "success",
    ExitCode.FAILED: "it failed: no room in shared memory, another protocol version, a failed check, or a no",
    ExitCode.USAGE: "wrong use: an unknown option, a setting out of range",
    ExitCode.HELD: "another process holds the pool or the endpoint; the message names it",
    ExitCode.NO_ANSWER: "no daemon answers, or it went away, or a process of a demonstration or benchmark did;"
    " the message says who, and why",
    ExitCode.REFUSED: "the daemon refused: this client may not, or not now; the message has the refusal's code",
    ExitCode.UNKNOWN: "the daemon knows no queue, or no micro-batch, of that name",
    ExitCode.INTERRUPTED: "interrupted",
}
"""What each code means; the reference in the docs is made from it."""

_CODES: tuple[tuple[type[ForebayError], ExitCode], ...] = (
    (HeldError, ExitCode.HELD),
    (UsageError, ExitCode.USAGE),
    (BrokenError, ExitCode.NO_ANSWER),
    (UnknownNameError, ExitCode.UNKNOWN),
    (RefusedError, ExitCode.REFUSED),
)


def exit_code(error: ForebayError) -> ExitCode:
    """Returns the exit code that tells a script what kind of error ended a command."""
    if isinstance(error, RefusedError) and error.code == RefusalCode.UNKNOWN_KEY:
        return ExitCode.UNKNOWN
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)
