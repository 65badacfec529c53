"""Other processes for the tests: they say a line at each step, and are killed without warning."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import forebay
from forebay.shm import free_bytes, reserve_pages, wait_until_free
from forebay.wire import Peer

PATIENCE_S = 60.0
_PRELUDE = """
import hashlib, os, sys
from pathlib import Path
from forebay.shm import *
from forebay.wire import *
def say(*words): print(*words, flush=True)
def pause(): sys.stdin.readline()
PEER = Peer(name="child", pid=os.getpid(), host="elsewhere")
"""


def this_peer() -> Peer:
    return Peer(name="test", pid=os.getpid(), host="here")


def fill_up(mount: Path, leave_bytes: int) -> None:
    """Has somebody else take all but some bytes of a mount."""
    with (mount / "filler").open("wb") as filler:
        reserve_pages(filler.fileno(), free_bytes(mount) - leave_bytes, path=mount / "filler")
    assert free_bytes(mount) == leave_bytes


class Child:
    """A Python process that runs `code` with the names of forebay.shm and forebay.wire, `say` and `pause`.

    Args:
        code: Python source; `sys.argv[1:]` holds the arguments.
        arguments: Strings or paths.
        wrapper: A command in front, such as unshare.
    """

    def __init__(self, code: str, *arguments: object, wrapper: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [*wrapper, sys.executable, "-c", _PRELUDE + code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path(forebay.__file__).parents[1])},
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    def hear(self) -> str:
        """Returns the next line that the process says."""
        assert self._process.stdout is not None
        timer = threading.Timer(PATIENCE_S, self._process.kill)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        timer.join()
        assert line, f"the process said nothing; it exited with {self._process.wait(PATIENCE_S)}"
        return line.rstrip("\n")

    def go_on(self) -> None:
        """Ends the process's `pause`."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def finish(self) -> int:
        """Waits for the process's own end and returns its exit status, negative for a signal."""
        return self._process.wait(PATIENCE_S)

    def kill(self) -> None:
        """Sends SIGKILL and waits until the process is gone."""
        self._process.kill()
        self._process.wait(PATIENCE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


Spawn = Callable[..., Child]


def wait_free(path: Path) -> None:
    """Waits for a lock as the daemon does, on a thread of its own."""
    thread = threading.Thread(target=wait_until_free, args=(path,), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), f"waited {PATIENCE_S} s for {path} to become free"
