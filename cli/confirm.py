"""Asks before something is done that cannot be undone."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from forebay.wire import ExitCode, UsageError, on_one_line

YesOption = Annotated[bool, typer.Option("--yes", help="do not ask first")]
_NOBODY: Final = "nobody answered, and nothing was changed"


def confirm(question: str, *, yes: bool) -> None:
    """Asks, and ends the command if the answer is no.

    Args:
        question: What will be done, and what that means.
        yes: Whether the answer was given beforehand.

    Raises:
        UsageError: There is nobody to answer.
    """
    if yes:
        return
    sys.stderr.write(f"{on_one_line(question)} [y/N]: ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        sys.stderr.write("\n")
        raise UsageError(_NOBODY, remedy="pass --yes to answer beforehand")
    if answer.strip().lower() not in ("y", "yes"):
        sys.stderr.write("nothing was changed\n")
        raise typer.Exit(ExitCode.FAILED)
