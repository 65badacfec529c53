"""`forebay trace`: what the last micro-batches were at, and when, for Perfetto and as a picture."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from forebay.orchestrator_client.timeline import Bar, check_timeline
from forebay.wire import Moment, SettingError, Status, printable
from forebay.wire.life_reader import past_of
from forebay.wire.plain_json import json_line

from .history import Clock, Reading, read_all, unbroken
from .inspector import Conversation, Inspector, asks_daemon
from .tracing.events import trace_of
from .tracing.excerpt import Excerpt, last_of
from .words import age, counted

_STDOUT: Final = "-"
_TELL_AFTER_S: Final = 1.0
_PNG: Final = "--png"


@asks_daemon()
def trace(
    inspector: Inspector,
    out: Annotated[
        str, typer.Option(metavar="FILE", help="Chrome trace JSON to write; - for standard output")
    ] = "forebay-trace.json",
    last: Annotated[int, typer.Option(help="micro-batches, the newest ones", min=1)] = 100,
    seconds: Annotated[
        float | None, typer.Option(help="only those of which something happened in this last time", min=0)
    ] = None,
    png: Annotated[Path | None, typer.Option(_PNG, metavar="FILE", help="PNG to draw as well")] = None,
    merge: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="JSON with bars to show below, such as a step's spans; can be repeated"),
    ] = None,
) -> None:
    """Write what happened to the last micro-batches as a trace.

    Open it at https://ui.perfetto.dev or in chrome://tracing.
    """
    if png is not None:
        check_timeline(png, _PNG)
    merged = {file.name: read_bars(file) for file in merge or ()}
    status, moments, clock = inspector.talk(_ask)
    excerpt = last_of(past_of(moments, clock.now_s), last, seconds)
    _write(out, json_line(trace_of(excerpt, status, merged)))
    sys.stderr.write(f"{_summary(excerpt, moments, out)}\n")
    if png is not None:
        from .tracing.picture import draw_trace

        draw_trace(excerpt, merged, _title(excerpt, status), png)


async def _ask(daemon: Conversation) -> tuple[Status, Sequence[Moment], Clock]:
    # First, so that what it tells of and the history does not is older than the history.
    status = await daemon.status()
    moments, clock = await read_all(daemon, Reading(), _Progress().tell)
    return status, unbroken(moments), clock


class _Progress:
    """Tells on standard error how far it is, if it takes long."""

    def __init__(self) -> None:
        self._next_at = time.monotonic() + _TELL_AFTER_S

    def tell(self, moments: int) -> None:
        """Hears how many moments there are by now."""
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + _TELL_AFTER_S
            sys.stderr.write(f"{moments} moments so far\n")


def read_bars(file: Path) -> Sequence[Bar]:
    """Reads a timeline's bars: a JSON array, or an object a line.

    Raises:
        SettingError: The file cannot be read, or holds something else.
    """
    try:
        text = file.read_bytes()
        bars = msgspec.json.decode(text, type=list[Bar]) if text.lstrip()[:1] == b"[" else list(_lines(text))
    except (OSError, ValueError) as error:
        raise SettingError(
            f"{file} cannot be merged", got=error, limit='bars like {"lane", "key", "began_at", "ended_at"}'
        ) from error
    for bar in bars:
        if not bar.began_at <= bar.ended_at:
            raise SettingError(f"{file} cannot be merged", got=bar, limit="bars that end after they begin")
    return bars


def _lines(text: bytes) -> Iterator[Bar]:
    return (msgspec.json.decode(line, type=Bar) for line in text.splitlines() if line.strip())


def _write(out: str, text: str) -> None:
    if out == _STDOUT:
        sys.stdout.write(text)
        return
    try:
        Path(out).write_text(text)
    except OSError as error:
        raise SettingError(
            "option --out", got=out, limit=f"a file that can be written: {error.strerror}"
        ) from error


def _summary(excerpt: Excerpt, moments: Sequence[Moment], out: str) -> str:
    words = _extent(excerpt) if out == _STDOUT else f"{printable(out)}: {_extent(excerpt)}"
    known = len(excerpt.past.lives)
    if len(excerpt.lives) < known:
        words += f", of {known} that are known"
    forgotten = moments[0].number - 1 if moments else 0
    if forgotten:
        words += f"; the daemon has forgotten the {forgotten} moments before (remembered_events)"
    return words


def _extent(excerpt: Excerpt) -> str:
    many = counted(len(excerpt.lives), "micro-batch", "micro-batches")
    return f"{many} of the last {age(excerpt.past.now_s - excerpt.began_at)}"


def _title(excerpt: Excerpt, status: Status) -> str:
    return f"daemon {status.peer.pid} on {printable(status.peer.host)}: {_extent(excerpt)}"
