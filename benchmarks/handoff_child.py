"""Child processes of the benchmarks: each line of JSON that goes in is answered by one that comes out."""

from __future__ import annotations

import os
import queue
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from forebay.wire import BrokenError, WaitTimeoutError

T = TypeVar("T")

_START_S = 60.0
_STOP_S = 60.0


class Child:
    """A child process, a context manager that ends it: in order, or by SIGKILL if the block ends by an error.

    Args:
        name: For messages.
        arguments: Of `python -m`.
        start_s: Seconds that it may take to say its first line.
    """

    def __init__(self, name: str, arguments: Sequence[str], *, start_s: float = _START_S) -> None:
        self.name = name
        self._start_s = start_s
        # Its standard input ends with this process, and so does the child. A session of its own: Ctrl-C is for
        # this process alone, which then ends its children.
        self._process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Unbuffered: what was not taken by a child that is dead must not be written again when it is closed.
            bufsize=0,
            start_new_session=True,
        )

    def __repr__(self) -> str:
        return f"the benchmark's {self.name} (pid {self.pid})"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def started(self, kind: type[T]) -> T:
        """Waits for the line that it says when it is ready."""
        return self.hear(kind, self._start_s, "to start")

    def say(self, request: msgspec.Struct) -> None:
        """Sends it a line.

        Raises:
            BrokenError: It has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._broken() from None

    def hear(self, kind: type[T], timeout_s: float, what: str) -> T:
        """Waits for a line from it.

        Args:
            kind: What the line must be.
            timeout_s: Seconds to wait.
            what: What is waited for, for the error: `to start`.

        Raises:
            WaitTimeoutError: It said nothing in time.
            BrokenError: It has ended.
        """
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            raise WaitTimeoutError(f"waited {timeout_s:g} s for {self!r} {what}")
        line = self._process.stdout.readline()
        if not line:
            raise self._broken()
        return msgspec.json.decode(line, type=kind)

    def stop(self) -> None:
        """Ends its standard input, after which it ends; it may say one more line."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _broken(self) -> BrokenError:
        return BrokenError(f"{self!r} ended when it should not have; it said why on standard error")

    def _check_end(self) -> None:
        try:
            code = self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            raise WaitTimeoutError(f"waited {_STOP_S:g} s for {self!r} to end") from None
        if code != 0:
            raise BrokenError(f"{self!r} ended with exit code {code}; it said why on standard error")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.stop()
                self._check_end()
        finally:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                stream.close()


class Requests:
    """What a child process is asked, line by line; the process ends at once if its input ends within a request."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._is_busy = threading.Event()
        threading.Thread(target=self._read, name="benchmark-input", daemon=True).start()

    def _read(self) -> None:
        # os.read, not sys.stdin: a thread inside of a buffered read would upset the interpreter's exit.
        rest = b""
        while piece := os.read(0, 65536):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._is_busy.set()
                self._lines.put(line)
        if self._is_busy.is_set():
            os._exit(1)
        self._lines.put(None)

    def serve(self, kind: type[T], handle: Callable[[T], msgspec.Struct]) -> None:
        """Answers each line until standard input ends.

        Args:
            kind: What each line must be.
            handle: Returns the answer.
        """
        while (line := self._lines.get()) is not None:
            answer = handle(msgspec.json.decode(line, type=kind))
            self._is_busy.clear()
            tell(answer)


def tell(answer: msgspec.Struct) -> None:
    """Says a line on standard output."""
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()
