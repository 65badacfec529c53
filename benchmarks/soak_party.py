"""A process of the soak that is started again whenever it ends, until it may stay away.

It says a line on its standard output, once, when it is at work.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

import msgspec

_PAUSE_S: Final = 0.5
"""Before a process is started that ended by an error of its own: what ends it may do so again, and at once."""
_END_S: Final = 30.0


class Life(msgspec.Struct, kw_only=True):
    """One process of a party.

    Attributes:
        number: From 1 on.
        pid: Its pid.
        began_at: Monotonic second.
        at_work_at: Monotonic second at which it said so; 0 before.
        ended_at: Monotonic second; 0 while it runs.
        code: Its exit code, negative for a signal; 0 while it runs.
        stops: How many stops of it are not over.
        was_swept: Whether it still ran when the soak ended, which killed it.
    """

    number: int
    pid: int
    began_at: float
    at_work_at: float = 0.0
    ended_at: float = 0.0
    code: int = 0
    stops: int = 0
    was_swept: bool = False


class Party:
    """One of the soak's processes, through all its lives; a context manager.

    Args:
        name: For messages and logs.
        command: Makes the arguments of `python -m` for a life's number.
        environment: Of the process.
        log: Where its standard error goes, all lives behind each other.
        python: The interpreter.

    Attributes:
        name: As it was given.
        log: As it was given.
        lives: Every process there was.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[int], Sequence[str]],
        environment: Callable[[], Mapping[str, str]],
        log: Path,
        python: str,
    ) -> None:
        self.name = name
        self.log = log
        self.lives: list[Life] = []
        self._command = command
        self._environment = environment
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._at_work = threading.Event()
        self._may_end = threading.Event()
        self._has_ended = threading.Event()
        self._is_over = False
        self._ends_for_now = False
        self._last_order = b""
        self._thread = threading.Thread(target=self._keep, name=f"soak-{name}", daemon=True)

    def __repr__(self) -> str:
        return f"Party({self.name!r}, life {len(self.lives)})"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        self.signal(signal.SIGKILL)
        self._thread.join(_END_S)

    @property
    def runs(self) -> bool:
        """Whether a process of it runs now."""
        with self._lock:
            return self._process is not None and self._process.poll() is None

    @property
    def is_at_work(self) -> bool:
        """Whether a process of it runs now, and has said that it is at work."""
        return self.runs and self._at_work.is_set()

    def wait_until_at_work(self, timeout_s: float) -> bool:
        """Waits until a process of it has said that it is at work; returns whether one has."""
        return self._at_work.wait(timeout_s)

    def signal(self, number: int) -> Life | None:
        """Sends a signal to the process there is; returns its life, or None if there was none."""
        with self._lock:
            return self._signal(number)

    def stop(self) -> Life | None:
        """Stops the process there is, until `go_on`; returns its life, or None if there was none."""
        with self._lock:
            life = self._signal(signal.SIGSTOP)
            if life is not None:
                life.stops += 1
            return life

    def go_on(self, life: Life) -> None:
        """Ends a stop of a life; it goes on when the last of its stops has ended, if it still lives."""
        with self._lock:
            life.stops -= 1
            if not life.stops and life is self.lives[-1]:
                self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> Life | None:
        if self._process is None or self._process.poll() is not None:
            return None
        self._process.send_signal(number)
        self._ends_for_now |= number == signal.SIGTERM and not self._may_end.is_set()
        return self.lives[-1]

    def order(self, words: str, *, lasts: bool = False) -> None:
        """Writes a line to its standard input.

        Args:
            words: The line.
            lasts: Whether every later life is told as well.
        """
        line = words.encode() + b"\n"
        with self._lock:
            if lasts:
                self._last_order = line
            self._tell(line)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended for good."""
        return self._has_ended.is_set()

    def may_end(self) -> None:
        """From now on an orderly end is final."""
        self._may_end.set()

    def wait_until_ended(self, timeout_s: float) -> bool:
        """Waits for a final end; returns whether it came."""
        return self._has_ended.wait(timeout_s)

    # On the thread.

    def _keep(self) -> None:
        with self.log.open("ab") as log:
            while self._start(log):
                code = self._live()
                # One that was told to end before it might stay away comes back.
                is_final = code == 0 and self._may_end.is_set() and not self._ends_for_now
                if self._is_over or is_final:
                    break
                if code > 0:
                    time.sleep(_PAUSE_S)
        self._has_ended.set()

    def _start(self, log: IO[bytes]) -> bool:
        """Starts the next life, unless the soak has ended meanwhile: nobody would end that one."""
        number = len(self.lives) + 1
        self._at_work.clear()
        self._ends_for_now = False
        with self._lock:
            if self._is_over:
                return False
            self._process = subprocess.Popen(
                [self._python, "-m", *self._command(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=dict(self._environment()),
                # Ctrl-C is for the soak alone, which then ends its processes.
                start_new_session=True,
                bufsize=0,
            )
            self.lives.append(Life(number=number, pid=self._process.pid, began_at=time.monotonic()))
            if self._last_order:
                self._tell(self._last_order)
        return True

    def _live(self) -> int:
        process, life = self._process, self.lives[-1]
        assert process is not None
        assert process.stdout is not None
        # Its one line of standard output, or the end of that.
        if process.stdout.readline():
            life.at_work_at = time.monotonic()
            self._at_work.set()
        life.code = process.wait()
        life.was_swept = self._is_over
        life.ended_at = time.monotonic()
        with self._lock:
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                stream.close()
        return life.code

    def _tell(self, line: bytes) -> None:
        if self._process is None or self._process.stdin is None or self._process.stdin.closed:
            return
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line)
