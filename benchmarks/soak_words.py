"""What the parties of the soak write down: a line of JSON for each thing that happens, in files that outlive them.

A line is one write to a file that is only appended to. So a process that is killed leaves every line that it had
written, and its next life goes on behind them. Times are monotonic seconds, which all processes of a host share.
"""

from __future__ import annotations

import enum
import os
import sys
import time
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

LineT = TypeVar("LineT", bound=msgspec.Struct)

QUEUE: Final = "train"


class Told(enum.StrEnum):
    """What an orchestrator writes down about a key.

    Attributes:
        ATTEMPT: A stage call begins.
        STAGED: It was acknowledged.
        REFUSED: The daemon said no; `code` says why.
        ERROR: A call raised; `code` is the error's class.
        CANCELLED: The soak had the stage call cancelled.
        CONSUMED: The key was trained. Final.
        LOST: The key is lost, with a reason. Final.
        DROPPED: The key was dropped, with a reason; `code` is `stale` if that was why. Final.
        RESET: A call that resets the queue begins.
        WAS_RESET: It was answered.
        ADVANCE: A call that tells the queue a policy version begins.
        ADVANCED: It was answered.
    """

    ATTEMPT = "attempt"
    STAGED = "staged"
    REFUSED = "refused"
    ERROR = "error"
    CANCELLED = "cancelled"
    CONSUMED = "consumed"
    LOST = "lost"
    DROPPED = "dropped"
    RESET = "reset"
    WAS_RESET = "was_reset"
    ADVANCE = "advance"
    ADVANCED = "advanced"


FINAL: Final = frozenset({Told.CONSUMED, Told.LOST, Told.DROPPED})
"""After one of these a key is never staged again."""
GONE: Final = frozenset({Told.LOST, Told.DROPPED})
STALE: Final = "stale"
"""The code of what was dropped, or not taken in, because it was stale."""


class OrchestratorLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened to a key of an orchestrator.

    Attributes:
        at: Monotonic second.
        life: Which of the orchestrator's processes wrote it, from 1 on.
        key: The key; empty for what concerns no key.
        what: See `Told`.
        digest: Of the micro-batch, in the lines of attempts.
        code: A refusal's code, or an error's class.
        words: What was said.
        policy_version: Of the micro-batch, in the lines of attempts; or that the queue is told, or goes back to.
        expires_s: Seconds from an attempt on, after which its micro-batch is stale.
    """

    at: float
    life: int
    key: str
    what: Told
    digest: str = ""
    code: str = ""
    words: str = ""
    policy_version: int | None = None
    expires_s: float | None = None


class Did(enum.StrEnum):
    """What a trainer writes down.

    Attributes:
        TRANSFER: Its transfer to the device began; written when it had ended.
        BEGIN: It has a micro-batch in hand and is about to train it.
        END: It has trained it; the digest is taken once more.
        HEARD: The daemon has confirmed that it knows the key to be consumed.
        UNHEARD: The trainer left, and its daemon never heard that the key is trained; the error named it.
        ERROR: A call raised; `code` is the error's class.
        LEFT: An orderly end of this life.
    """

    TRANSFER = "transfer"
    BEGIN = "begin"
    END = "end"
    HEARD = "heard"
    UNHEARD = "unheard"
    ERROR = "error"
    LEFT = "left"


class TrainerLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a trainer did.

    Attributes:
        at: Monotonic second.
        life: Which of the trainer's processes wrote it, from 1 on.
        key: The micro-batch's key, if it is about one.
        what: See `Did`.
        digest: Of the micro-batch as it was on the device.
        code: An error's class.
        words: What was said.
    """

    at: float
    life: int
    what: Did
    key: str = ""
    digest: str = ""
    code: str = ""
    words: str = ""


class Book:
    """A file of lines that is only appended to.

    Args:
        path: The file; made if it is missing.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, line: msgspec.Struct) -> None:
        """Appends a line."""
        os.write(self._fd, msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)


class Reader(Generic[LineT]):
    """Reads what is appended to a book, again and again.

    Args:
        path: The file; it may come later.
        kind: What its lines are.
    """

    def __init__(self, path: Path, kind: type[LineT]) -> None:
        self._path = path
        self._decoder = msgspec.json.Decoder(kind)
        self._offset = 0

    def more(self) -> list[LineT]:
        """Returns the whole lines that have come since the last time."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return [self._decoder.decode(line) for line in whole.splitlines()]


def read_lines(path: Path, kind: type[LineT]) -> list[LineT]:
    """Returns all lines of a book; none if there is no file."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=kind) for line in path.read_bytes().splitlines()]


def now() -> float:
    """Returns the monotonic second, the same in every process of this host."""
    return time.monotonic()


def say_at_work() -> None:
    """Says to whoever started this process that it is at work."""
    sys.stdout.write("at work\n")
    sys.stdout.flush()
