"""`forebay doctor`: what of this host would keep a daemon from working, or from working well."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from forebay.wire.errors import SettingError, on_one_line
from forebay.wire.exit_codes import ExitCode
from forebay.wire.plain_json import json_line

from .checks.line import Line, Verdict, failed_by, is_bad, ok
from .json_option import JsonOption

_INDENT = " " * 24
_STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


def doctor(
    config: Annotated[Path | None, typer.Option(help="TOML file of the daemon's settings; FOREBAY_CONFIG")] = None,
    before_start: Annotated[
        bool,
        typer.Option("--before-start", help="tell only what would keep a daemon from its start, for its unit"),
    ] = False,
    self_test: Annotated[
        bool, typer.Option(help="stage one micro-batch with a private daemon; never with --before-start")
    ] = True,
    strict: Annotated[bool, typer.Option("--strict", help="exit with 1 for a warning too")] = False,
    json: JsonOption = False,
) -> None:
    """Check what this host has for a daemon, and what to mend.

    The settings are those that `forebay serve` would have with the same file and environment. Exits with 0 if
    nothing fails, 1 if something does.
    """
    lines = _lines(config, before_start=before_start, self_test=self_test and not before_start)
    if json:
        told = list(lines)
        _tell_json(told)
    elif before_start:
        told = list(lines)
        _tell_before_start(told, strict=strict)
    else:
        told = _show(lines)
    if is_bad(told, strict=strict):
        raise typer.Exit(ExitCode.FAILED)


def _lines(config: Path | None, *, before_start: bool, self_test: bool) -> Iterator[Line]:
    from forebay.daemon.settings import load_settings

    from .checks.case import Case
    from .checks.plan import SETTINGS, examine

    try:
        settings = load_settings(file=config)
    except SettingError as error:
        yield failed_by(SETTINGS, error)
        return
    yield ok(SETTINGS, _sources(config))
    yield from examine(Case(settings, before_start), self_test=self_test)


def _sources(config: Path | None) -> str:
    from forebay.daemon.settings import Settings
    from forebay.wire.settings import read_variables

    file = os.environ.get("FOREBAY_CONFIG") if config is None else str(config)
    names = ", ".join(read_variables(Settings, os.environ))
    told = (file and f"{file} has some", names and f"the environment has {names}")
    return "; ".join(part for part in told if part) or "the defaults"


def _tell_json(lines: list[Line]) -> None:
    sys.stdout.write(json_line({"checks": lines}))


def _tell_before_start(lines: list[Line], *, strict: bool) -> None:
    """Tells what counts, each in one line, or in one line that nothing does."""
    counting = [line for line in lines if is_bad([line], strict=strict)]
    for line in counting:
        sys.stdout.write(on_one_line(f"{line.verdict} {line.check}: {line.found}; {line.remedy}") + "\n")
    if counting:
        return
    warned = ", ".join(line.check for line in lines if line.verdict is Verdict.WARN)
    more = f"; warnings, which forebay doctor explains: {warned}" if warned else ""
    sys.stdout.write(f"ok: {len(lines)} checks, none fails{more}\n")


def _show(lines: Iterator[Line]) -> list[Line]:
    """Shows each line as soon as it is there; returns them all."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    told = []
    for line in lines:
        verdict = (f"{line.verdict:<6}", _STYLES[line.verdict])
        console.print(Text.assemble(verdict, f"{line.check:<18}", _wrapped(line, console.width)), soft_wrap=True)
        told.append(line)
    return told


def _wrapped(line: Line, width: int) -> str:
    """Returns what was found and what to do, in lines that leave the left to verdict and check."""
    words = [line.found, *([f"-> {line.remedy}"] if line.remedy else [])]
    room = max(20, width - len(_INDENT))
    rows = (row for part in words for row in textwrap.wrap(on_one_line(part), room, break_on_hyphens=False))
    return f"\n{_INDENT}".join(rows)
