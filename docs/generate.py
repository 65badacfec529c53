"""Writes the parts of the docs that are made from the code; with --check, fails where they are stale.

A part stands between `<!-- made from the code: NAME -->` and `<!-- end -->` in any page of this folder.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from api_page import api_page
from cli_page import cli_page
from events_page import event_rows

from forebay.benchmarks.goals import GOALS
from forebay.cli.checks import CHECKS
from forebay.daemon import Settings
from forebay.daemon.measures import BYTES_BOUNDS, SECONDS_BOUNDS
from forebay.daemon.metric_table import METRICS
from forebay.orchestrator_client.ahead_states import AHEAD_TRANSITIONS
from forebay.orchestrator_client.settings import OrchestratorSettings
from forebay.shm import HEADER_FIELDS, SLOT_TRANSITIONS
from forebay.trainer.call_states import CALL_TRANSITIONS
from forebay.trainer.entry_states import ENTRY_TRANSITIONS
from forebay.trainer.settings import TrainerSettings
from forebay.wire import (
    DTYPES,
    EXIT_MEANINGS,
    MICRO_BATCH_TRANSITIONS,
    REFUSAL_MEANINGS,
    ForebayError,
    RefusedError,
    exit_code,
    setting_of,
    variable_of,
)

DOCS = Path(__file__).parent
PART = re.compile(r"(<!-- made from the code: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_WIDTH = 118
SETTING_HEADER = ("type", "default", "range", "meaning", "where the default came from")


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Makes a Markdown table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def slot_table() -> str:
    """The slot's life."""
    rows = [(f"`{a.name}`", e.value, f"`{b.name}`") for (a, e), b in SLOT_TRANSITIONS.items()]
    return table(("from", "event", "to"), rows)


def micro_batch_table() -> str:
    """The micro-batch's life."""
    rows = [(f"`{a}`", e.value, f"`{b}`") for (a, e), b in MICRO_BATCH_TRANSITIONS.items()]
    return table(("from", "event", "to"), rows)


def entry_table() -> str:
    """The life of an entry of the trainer's staging queue."""
    rows = [(f"`{a}`", e.value, f"`{b}`") for (a, e), b in ENTRY_TRANSITIONS.items()]
    return table(("from", "event", "to"), rows)


def call_table() -> str:
    """The life of a call in the trainer's worker."""
    rows = [(f"`{a}`", e.value, f"`{b}`") for (a, e), b in CALL_TRANSITIONS.items()]
    return table(("from", "event", "to"), rows)


def ahead_table() -> str:
    """The life of a micro-batch in the stage-ahead loop."""
    rows = [(f"`{a}`", e.value, f"`{b}`") for (a, e), b in AHEAD_TRANSITIONS.items()]
    return table(("from", "event", "to"), rows)


def slot_layout() -> str:
    """The slot file's header."""
    rows = [
        (str(field.offset), f"`{field.format}`", f"`{name}`", field.unit, field.meaning)
        for name, field in HEADER_FIELDS.items()
    ]
    return table(("offset", "format", "field", "unit", "meaning"), rows)


def refusals() -> str:
    """The refusal codes."""
    return table(("code", "meaning"), [(f"`{code}`", words) for code, words in REFUSAL_MEANINGS.items()])


def exit_codes() -> str:
    """The exit codes of the command line."""
    return table(("code", "meaning"), [(f"{code:d}", words) for code, words in EXIT_MEANINGS.items()])


def events() -> str:
    """The events of the log."""
    return table(("event", "logged by", "levels", "meaning"), event_rows())


def errors() -> str:
    """The error classes, each behind its base, with the exit code that it ends a command with."""
    return table(("error", "a kind of", "exit code", "meaning"), list(_error_rows(ForebayError)))


def _error_rows(kind: type[ForebayError]) -> Iterator[tuple[str, ...]]:
    base = "" if kind is ForebayError else f"`{kind.__bases__[0].__name__}`"
    error = RefusedError("", "") if kind is RefusedError else kind.__new__(kind)  # its code has a say in it
    meaning = (kind.__doc__ or "").partition("\n")[0].rstrip(".")
    yield f"`{kind.__name__}`", base, f"{exit_code(error):d}", meaning
    for below in kind.__subclasses__():
        if below.__module__ == kind.__module__:  # those of one package alone are in the Python API
            yield from _error_rows(below)


def dtypes() -> str:
    """The dtypes that may travel."""
    return ", ".join(f"`{name}`" for name in DTYPES) + "\n"


def metrics() -> str:
    """The daemon's metrics."""
    rows = [
        (f"`{metric.name}`", metric.kind.value, ", ".join(f"`{name}`" for name in metric.labels), metric.meaning)
        for metric in METRICS
    ]
    return table(("metric", "type", "labels", "meaning"), rows)


def metric_buckets() -> str:
    """The upper bounds of the buckets."""
    bounds = {"_seconds": SECONDS_BOUNDS, "_bytes": BYTES_BOUNDS}
    return table(
        ("metrics", "upper bounds"), [(f"`{k}`", ", ".join(f"{b:g}" for b in v)) for k, v in bounds.items()]
    )


def settings() -> str:
    """The daemon's settings."""
    rows = [(*_setting_row(field), _reload(field)) for field in dataclasses.fields(Settings)]
    return table(("setting", *SETTING_HEADER, "reload"), rows)


def trainer_settings() -> str:
    """The trainer's settings, each with its environment variable."""
    return _settings_with_variables(TrainerSettings)


def orchestrator_settings() -> str:
    """The stage-ahead loop's settings, each with its environment variable."""
    return _settings_with_variables(OrchestratorSettings)


def _settings_with_variables(kind: type[Any]) -> str:
    rows = [_setting_row(field, f"`{variable_of(field)}`") for field in dataclasses.fields(kind)]
    return table(("setting", "environment variable", *SETTING_HEADER), rows)


def _setting_row(field: dataclasses.Field[Any], *variable: str) -> tuple[str, ...]:
    known = setting_of(field)
    rest = (_default(field), known.limit, known.meaning, known.source)
    return (f"`{field.name}`", *variable, str(field.type), *rest)


def _reload(field: dataclasses.Field[Any]) -> str:
    return "yes" if setting_of(field).reloadable else ""


def _default(field: dataclasses.Field[Any]) -> str:
    return "this user's" if field.default is dataclasses.MISSING else f"`{field.default}`"


def performance_run() -> str:
    """What the figures were measured with."""
    run = _performance()
    machine = run["machine"]
    software = ", ".join(f"{name} {version}" for name, version in machine["software"].items())
    told = (
        f"`./dev run {run['command'].removeprefix('forebay ')}`, {run['date']}, {run['took_s']:.0f} s, on a"
        f" virtual machine with {machine['cores']} cores of {machine['processor']}, {machine['memory_gib']:g} GiB,"
        f" Linux {machine['kernel']}, huge pages for shared memory: {machine['huge_pages']}. {software}."
    )
    return textwrap.fill(told, _WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"


def performance_goals() -> str:
    """What was to be reached, and what was."""
    run = _performance()
    rows = []
    for goal in GOALS:
        value = goal.value(run)
        if value is not None:
            reached = "" if goal.is_reached(value) else "missed"
            spread = goal.spread(run)
            told = "" if spread is None else f"{spread[0]:.4g} to {spread[1]:.4g}"
            rows.append((f"`{goal.key}`", goal.meaning, goal.bounds, f"{value:.4g}", told, reached))
    return table(("key", "what", "to reach", "median", "spread", ""), rows)


def performance_ways() -> str:
    """Each way from a sender into a receiver's shared memory."""
    ways = _performance()["ingest"]["ways"]
    rows = [
        (
            f"`{name}`",
            f"{way['gb_s']:.2f}",
            f"{way['gb_s_spread'][0]:.2f} to {way['gb_s_spread'][1]:.2f}",
            f"{way['sender_cpu_s_per_gb']:.2f}",
            f"{way['receiver_cpu_s_per_gb']:.2f}",
            f"{way['sender_private_mib']:.0f}",
            f"{way['receiver_private_mib']:.0f}",
        )
        for name, way in ways.items()
    ]
    head = ("way", "GB/s", "spread", "sender CPU s/GB", "receiver CPU s/GB", "sender MiB", "receiver MiB")
    return table(head, rows)


def performance_codecs() -> str:
    """Each kind of micro-batch over the throttled wire."""
    kinds = _performance()["codecs"]["kinds"]
    rows = [
        (
            name,
            kind["codec"],
            f"{kind['ratio']:.3f}",
            f"{kind['gbps']:.2f}",
            f"{kind['sender_cpu_s_per_gb']:.2f}",
            f"{kind['daemon_cpu_s_per_gb']:.2f}",
        )
        for name, kind in kinds.items()
    ]
    return table(("rows", "codec", "wire bytes", "GB/s of arrays", "sender CPU s/GB", "daemon CPU s/GB"), rows)


def _performance() -> dict[str, Any]:
    run: dict[str, Any] = json.loads((DOCS / "performance.json").read_text())
    return run


def doctor_checks() -> str:
    """What `forebay doctor` looks at."""
    rows = [(f"`{check.name}`", check.meaning, "yes" if check.is_of_start else "") for check in CHECKS]
    first = ("`settings`", "the settings can be read, and are in range", "yes")
    return table(("check", "what it looks at", "before a start"), [first, *rows])


PARTS: dict[str, Callable[[], str]] = {
    "api": api_page,
    "cli": cli_page,
    "exit-codes": exit_codes,
    "performance-run": performance_run,
    "performance-goals": performance_goals,
    "performance-ways": performance_ways,
    "performance-codecs": performance_codecs,
    "slot-table": slot_table,
    "micro-batch-table": micro_batch_table,
    "entry-table": entry_table,
    "slot-layout": slot_layout,
    "refusals": refusals,
    "events": events,
    "errors": errors,
    "dtypes": dtypes,
    "metrics": metrics,
    "metric-buckets": metric_buckets,
    "settings": settings,
    "trainer-settings": trainer_settings,
    "orchestrator-settings": orchestrator_settings,
    "call-table": call_table,
    "ahead-table": ahead_table,
    "doctor-checks": doctor_checks,
}


def main() -> int:
    """Writes or checks every page; returns the exit code."""
    stale = []
    for page in sorted(DOCS.glob("*.md")):
        before = page.read_text()
        after = PART.sub(lambda part: part[1] + PARTS[part[2]]() + part[3], before)
        if after != before:
            stale.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(after)
    if stale:
        verb = "stale, run docs/generate.py:" if "--check" in sys.argv else "written:"
        print(verb, ", ".join(stale))
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
