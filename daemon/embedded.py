"""A private daemon as a child process, for notebooks, tests and demonstrations."""

from __future__ import annotations

import dataclasses
import os
import select
import shutil
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import msgspec

from forebay.shm import remove_orphan, this_peer
from forebay.wire import HostError, SettingError, WaitTimeoutError

from .ready import Ready
from .settings import Settings

_STOP_MARGIN_S = 10.0
_SHM = Path("/dev/shm")
_PREFIX = f"forebay-{os.geteuid()}-local-"


class LocalDaemon:
    """A daemon that lives as long as this object, and never longer than this process.

    Its sockets lie in its pool's folder, which is a private one in shared memory, unless settings say otherwise.

    Args:
        timeout_s: Seconds that the start may take.
        log_file: Where its log goes; by default only its last words are kept, for a failed start.
        settings: Any fields of `forebay.daemon.Settings`.

    Raises:
        SettingError: No such setting.
        HostError: The daemon did not start; the message holds its last words.
        WaitTimeoutError: It was not ready in time.
    """

    def __init__(self, *, timeout_s: float = 30.0, log_file: Path | None = None, **settings: Any) -> None:
        known = {field.name for field in dataclasses.fields(Settings)}
        if unknown := sorted(settings.keys() - known):
            raise SettingError("local_daemon has no such settings", got=unknown, limit=sorted(known))
        if settings.get("keep_pool") and "pool" not in settings:
            raise SettingError("local_daemon can keep only a pool that has a name", remedy="pass pool= as well")
        remove_orphans()
        self._folder = None if "pool" in settings else private_pool()
        folder = settings.setdefault("pool", str(self._folder))
        private = {f"{name}_endpoint": f"ipc://{folder}/{name}.sock" for name in ("control", "data", "trainer")}
        self._settings = private | settings
        drain_s = float(self._settings.get("drain_s", Settings().drain_s))
        self._stop_s = drain_s + _STOP_MARGIN_S
        with open(log_file, "a+b") if log_file else tempfile.TemporaryFile() as log:
            self.process, self._parent_end, ready_end = _spawn(self._settings, log)
            try:
                self.ready = _read_ready(ready_end, timeout_s, log)
            except BaseException:
                self.process.kill()
                self.close()
                raise
            finally:
                os.close(ready_end)

    def __repr__(self) -> str:
        endpoints = f"control_endpoint={self.control_endpoint!r}, trainer_endpoint={self.trainer_endpoint!r}"
        return f"LocalDaemon(pid={self.pid}, {endpoints})"

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        return self.process.pid

    @property
    def control_endpoint(self) -> str:
        """Where orchestrators connect."""
        return self.ready.control_endpoint

    @property
    def trainer_endpoint(self) -> str:
        """Where trainers attach."""
        return self.ready.trainer_endpoint

    @property
    def pool(self) -> Path:
        """The pool's folder."""
        return Path(self.ready.pool)

    def close(self) -> None:
        """Stops the daemon in order, as SIGTERM would; kills it if it takes longer than it may."""
        if self._parent_end >= 0:
            os.close(self._parent_end)
            self._parent_end = -1
            self.process.terminate()  # as well: a child forked from this process would keep the pipe open
        try:
            self.process.wait(self._stop_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self._folder is not None:
            # Whoever was connected may have left a socket there.
            shutil.rmtree(self._folder, ignore_errors=True)
        remove_orphans()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def local_daemon(*, timeout_s: float = 30.0, log_file: Path | None = None, **settings: Any) -> LocalDaemon:
    """Starts a private daemon; use it as a context manager. See `LocalDaemon`."""
    return LocalDaemon(timeout_s=timeout_s, log_file=log_file, **settings)


def private_pool(parent: Path = _SHM) -> Path:
    """Returns where a new private daemon may have its pool; `remove_orphans` knows it by its name."""
    return parent / f"{_PREFIX}{uuid.uuid4().hex[:12]}"


def remove_orphans(parent: Path = _SHM) -> list[Path]:
    """Removes the folders that killed private daemons of this user left behind; returns them."""
    me = this_peer("forebay clean-up")
    return [folder for folder in parent.glob(f"{_PREFIX}*") if remove_orphan(folder, me)]


def _spawn(settings: dict[str, Any], log: IO[bytes]) -> tuple[subprocess.Popen[bytes], int, int]:
    """Returns the process, the pipe end that keeps it alive, and the pipe end that tells when it is ready."""
    ready_end, ready_fd = os.pipe()
    parent_fd, parent_end = os.pipe()
    # It is no service of the manager that this process may be one of.
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "NOTIFY_SOCKET"))
    }
    own = {f"FOREBAY_{name.upper()}": str(value) for name, value in settings.items()}
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "forebay.daemon", str(ready_fd), str(parent_fd)],
            env=inherited | own,
            pass_fds=(ready_fd, parent_fd),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            # Ctrl-C in a terminal or notebook is for the parent; the daemon ends when the parent lets go.
            start_new_session=True,
        )
    finally:
        os.close(ready_fd)
        os.close(parent_fd)
    return process, parent_end, ready_end


def _read_ready(fd: int, timeout_s: float, log: IO[bytes]) -> Ready:
    if not select.select([fd], [], [], timeout_s)[0]:
        raise WaitTimeoutError(f"the daemon was not ready within {timeout_s} s", remedy="pass a longer timeout_s")
    line = os.read(fd, 1 << 16)
    if line:
        return msgspec.json.decode(line, type=Ready)
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - 4096))
    raise HostError(f"the daemon did not start: {_last_line(log.read())}")


def _last_line(words: bytes) -> str:
    lines = words.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
