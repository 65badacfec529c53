"""The processes of a soak, what each is given, and what their logs tell."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from forebay.wire import CODECS

from .soak_faults import ADVANCE, DAEMON, ORCHESTRATORS, TRAINER, chosen
from .soak_party import Party
from .soak_place import Place
from .soak_result import SoakSettings
from .soak_wire import Wire

_CODECS: Final = ("auto", *CODECS)
_TRAINER_CAP: Final = 2
ATTACH_S: Final = 20.0
"""Seconds for which a trainer waits for the daemon."""
WAIT_S: Final = 10.0
"""Seconds for which an offer waits for a slot."""
CONNECT_S: Final = 10.0
"""Seconds for which an orchestrator waits for the daemon."""
TIMEOUT_S: Final = 15.0
"""Seconds for a stage call of an orchestrator, and for a wait for an outcome."""
RETRY_S: Final = 0.3
"""Seconds without an answer after which an orchestrator repeats a request."""
SILENCE_S: Final = 3.0
"""Seconds without a word after which an orchestrator takes the daemon to be gone."""
_SHOWN_CHARS: Final = 4000
_SHOWN_LINES: Final = 40
_BAD_WORDS: Final = (
    " ERROR ",
    " CRITICAL ",
    "Traceback (most recent call last)",
    "Warning: ",
    "Fatal Python error",
)


def make_parties(
    settings: SoakSettings, place: Place, wires: Mapping[str, Wire], keeps_pool: Callable[[], bool]
) -> list[Party]:
    """Makes the daemon, the trainer and the orchestrators; none of them runs yet.

    Args:
        settings: Of the soak.
        place: Folders and ports.
        wires: By orchestrator: where it dials.
        keeps_pool: Tells whether the next daemon leaves its pool at an orderly end.
    """

    def trainer(life: int) -> list[str]:
        given = {
            "life": life,
            "endpoint": place.trainer_endpoint,
            "book": str(place.books / f"{TRAINER}.jsonl"),
            "cap": _TRAINER_CAP,
            "attach_s": ATTACH_S,
        }
        return ["forebay.benchmarks.soak_trainer", msgspec.json.encode(given).decode()]

    def party(name: str, command: Callable[[int], list[str]], own: Callable[[], dict[str, str]]) -> Party:
        return Party(name, command, own, place.books / f"{name}.log", sys.executable)

    return [
        party(
            DAEMON,
            lambda _: ["forebay.benchmarks.soak_daemon", "1", "0"],
            lambda: place.daemon_environment(keep_pool=keeps_pool()),
        ),
        party(TRAINER, trainer, place.environment),
        *(
            party(name, _orchestrator(settings, place, name, wires[name]), place.environment)
            for name in ORCHESTRATORS
        ),
    ]


def _orchestrator(settings: SoakSettings, place: Place, name: str, wire: Wire) -> Callable[[int], list[str]]:
    first = ORCHESTRATORS.index(name)

    def command(life: int) -> list[str]:
        given = {
            "name": name,
            "life": life,
            "seed": settings.seed,
            "endpoint": wire.endpoint,
            "data_endpoint": wire.data_endpoint,
            **place.keys_of(name)._asdict(),
            "has_versions": ADVANCE in chosen(settings.faults),
            "book": str(place.books / f"{name}.jsonl"),
            "in_flight": settings.in_flight,
            # Each life another one, so that every codec meets faults.
            "codec": _CODECS[(first + life) % len(_CODECS)],
            "wait_s": WAIT_S,
            "timeout_s": TIMEOUT_S,
            "retry_s": RETRY_S,
            "silence_s": SILENCE_S,
            "connect_s": CONNECT_S,
        }
        return ["forebay.benchmarks.soak_orchestrator", msgspec.json.encode(given).decode()]

    return command


def bad_lines(log: Path) -> list[str]:
    """Returns the lines of a log that say that something is wrong with Forebay itself, or with its host."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    found = []
    for number, line in enumerate(lines):
        if any(word in line for word in _BAD_WORDS):
            # The last line of a traceback says what it was.
            rest = lines[number : number + _SHOWN_LINES] if line.startswith("Traceback") else [line]
            found.append(" | ".join(rest)[:_SHOWN_CHARS])
    return found


def tail(log: Path) -> str:
    """Returns the end of a log."""
    return log.read_text(errors="replace")[-_SHOWN_CHARS:] if log.exists() else ""
