"""All benchmarks one after another, each in a process of its own, so that none meets what another left."""

from __future__ import annotations

import datetime
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from forebay.wire import BrokenError, UsageError, WaitTimeoutError

from .machine import this_machine

BENCHMARKS: Final[dict[str, tuple[str, ...]]] = {
    "ingest": (),
    "codecs": (),
    "handoff": (),
    "small": (),
    "idle": (),
}
"""Every benchmark of the way from an orchestrator to a trainer's views, and its options."""

WITH_TRAINER: Final = frozenset({"handoff", "small", "idle"})
"""Those of them that start a trainer, and so need jax."""

_RUN_S: Final = 1800.0


def run(names: Sequence[str] = tuple(BENCHMARKS)) -> dict[str, Any]:
    """Runs benchmarks.

    Args:
        names: Of `BENCHMARKS`.

    Returns:
        The result of each by its name; and `machine`, `date`, `command` and `took_s`.

    Raises:
        UsageError: There is no such benchmark.
        BrokenError: One failed; what it said is on standard error.
        WaitTimeoutError: One did not end.
    """
    if unknown := [name for name in names if name not in BENCHMARKS]:
        raise UsageError("there are no such benchmarks", got=unknown, limit=", ".join(BENCHMARKS))
    began_at = time.monotonic()
    results = {name: _run_one(name) for name in names}
    return {
        **results,
        "machine": msgspec.to_builtins(this_machine()),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": "forebay bench all --json",
        "took_s": round(time.monotonic() - began_at, 1),
    }


def _run_one(name: str) -> Any:
    command = [sys.executable, "-m", "forebay.cli", "bench", name, "--json", *BENCHMARKS[name]]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=_RUN_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise WaitTimeoutError(f"the benchmark {name} did not end within {_RUN_S:g} s") from error
    if done.returncode != 0:
        raise BrokenError(f"the benchmark {name} failed with exit code {done.returncode}")
    return msgspec.json.decode(done.stdout)
