"""Child processes whose events are read as they come, and whose end is never missed."""

from __future__ import annotations

import collections
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self, TypeAlias

import msgspec

from forebay.wire import BrokenError, WaitTimeoutError

from .events import AnyEvent, decode_event

_TICK_S = 0.2
_EXIT_S = 30.0
_KEPT_LINES = 20
_SHOWN_LINES = 3

Inbox: TypeAlias = "queue.SimpleQueue[tuple[Child, AnyEvent | None]]"
"""Events of children, with None after a child's last."""


class ChildError(BrokenError):
    """A process of the demonstration ended badly; the message says which, and its last words."""


class Child:
    """One child process, a context manager that kills it if it still runs.

    Args:
        name: For messages.
        arguments: Of `python -m`.
        inbox: Where its events go; None after the last.
    """

    def __init__(self, name: str, arguments: Sequence[str], inbox: Inbox) -> None:
        self.name = name
        self.over = False
        self._inbox = inbox
        self._last_lines: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        # Its standard input ends with this process, and so does the child. A session of its own: Ctrl-C is for
        # this process alone, which then ends its children in order.
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._readers = [
            threading.Thread(target=read, daemon=True) for read in (self._read_events, self._read_errors)
        ]
        for reader in self._readers:
            reader.start()

    def __repr__(self) -> str:
        return f"Child({self.name!r}, pid={self.process.pid})"

    def check_end(self, before_blaming: Callable[[], None]) -> None:
        """Waits for the process, whose output has ended, and marks it over.

        Args:
            before_blaming: Called once the process has ended; raises what went wrong elsewhere.

        Raises:
            ChildError: It failed.
            WaitTimeoutError: It does not end.
        """
        try:
            code = self.process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            raise WaitTimeoutError(
                f"the {self.name} (pid {self.process.pid}) did not end within {_EXIT_S:.0f} s of its last event"
            ) from None
        for reader in self._readers:
            reader.join(_EXIT_S)
        before_blaming()
        self.over = True
        if code != 0:
            raise ended_badly(self.name, self.process.pid, code, list(self._last_lines))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join(_EXIT_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def _read_events(self) -> None:
        for line in self.process.stdout or ():
            try:
                self._inbox.put((self, decode_event(line)))
            except msgspec.DecodeError:
                self._last_lines.append(line.decode(errors="replace").rstrip())
        self._inbox.put((self, None))

    def _read_errors(self) -> None:
        for line in self.process.stderr or ():
            self._last_lines.append(line.decode(errors="replace").rstrip())


def events_of(
    children: Sequence[Child],
    inbox: Inbox,
    *,
    timeout_s: float,
    check_others: Callable[[], None],
) -> Iterator[AnyEvent]:
    """Yields the events of all children until all have ended well.

    Args:
        children: Every child that writes to the inbox.
        inbox: See `Child`.
        timeout_s: Seconds that may pass without an event of any of them.
        check_others: Called several times a second and before a child is blamed; raises what went wrong elsewhere.

    Raises:
        ChildError: A child failed.
        WaitTimeoutError: None of them reported anything for too long.
    """
    heard_at = time.monotonic()
    while running := [child for child in children if not child.over]:
        check_others()
        try:
            child, event = inbox.get(timeout=_TICK_S)
        except queue.Empty:
            if time.monotonic() - heard_at > timeout_s:
                names = " and ".join(f"the {child.name} (pid {child.process.pid})" for child in running)
                raise WaitTimeoutError(f"{names} reported nothing for {timeout_s:.0f} s") from None
            continue
        heard_at = time.monotonic()
        if event is not None:
            yield event
            continue
        child.check_end(check_others)


def ended_badly(name: str, pid: int, code: int, last_lines: Sequence[str]) -> ChildError:
    """Makes the error about a process that ended when it should not have, or with a failure."""
    words = " | ".join(line.strip() for line in last_lines[-_SHOWN_LINES:] if line.strip())
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return ChildError(f"the {name} (pid {pid}) {how}; its last words: {words or 'none'}")
