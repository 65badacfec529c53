"""What a check says: one line, with a verdict."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from forebay.wire.errors import ForebayError, on_one_line


class Verdict(enum.StrEnum):
    """How a check ended.

    Attributes:
        OK: As it should be.
        WARN: It works, and something may come of it.
        FAIL: It does not work.
    """

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Line(msgspec.Struct, frozen=True):
    """One check's line.

    Attributes:
        check: The check's name.
        verdict: How it ended.
        found: What was found.
        remedy: What to do about it; empty where all is well.
    """

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""


def ok(check: str, found: str) -> Line:
    """Makes the line of a check that found all well."""
    return Line(check, Verdict.OK, found)


def warn(check: str, found: str, remedy: str) -> Line:
    """Makes the line of a check that found what works, and may not for long."""
    return Line(check, Verdict.WARN, found, remedy)


def fail(check: str, found: str, remedy: str) -> Line:
    """Makes the line of a check that found what does not work."""
    return Line(check, Verdict.FAIL, found, remedy)


def failed_by(check: str, error: ForebayError) -> Line:
    """Makes the line of a check out of the error that would end the daemon's start, in the error's words."""
    return fail(check, without_remedy(error), error.remedy or "change what it names")


def without_remedy(error: ForebayError) -> str:
    """Returns an error's words but for its remedy, which a line tells apart."""
    return str(error).removesuffix(f"; {on_one_line(error.remedy or '')}")


def is_bad(lines: Iterable[Line], *, strict: bool = False) -> bool:
    """Whether a script should take it for a failure.

    Args:
        lines: Of all checks.
        strict: Warnings count too.
    """
    bad = {Verdict.FAIL, Verdict.WARN} if strict else {Verdict.FAIL}
    return any(line.verdict in bad for line in lines)
