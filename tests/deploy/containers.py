"""Containers without an engine: namespaces and a root file system of their own, a user that is not root."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from ..end_to_end.processes import EVENT_S

UID = 10001
_UNSHARE = ("unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child")
_SYSTEM = ("bin", "lib", "lib64", "sbin", "usr", "etc")
_DEVICES = ("null", "zero", "random", "urandom")
_LOOK_S = 0.02


@dataclasses.dataclass(frozen=True, slots=True)
class Mount:
    """A folder of this machine's in a container.

    Attributes:
        source: The folder.
        target: Its path in the container.
        is_writable: Whether it can be written there, by whoever may.
    """

    source: Path
    target: str
    is_writable: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Container:
    """What a container is made of; its root is read-only, and shows the system's programs and nothing else of it.

    Attributes:
        mounts: Folders in it.
        has_tmp: Whether it has a /tmp of its own that can be written; else it can be written nowhere.
        uid: Who runs in it; 0 is root with all that root may do.
        gid: Its group.
        groups: Other groups that it is in.
    """

    mounts: tuple[Mount, ...]
    has_tmp: bool = False
    uid: int = UID
    gid: int = UID
    groups: tuple[int, ...] = ()

    def wrapper(self, folder: Path) -> list[str]:
        """Returns a command in front of what is to run in a new one.

        Args:
            folder: An empty folder, where its root is mounted, in its own namespace alone.
        """
        script = "\n".join(self._script(shlex.quote(str(folder))))
        return [*_UNSHARE, "/bin/sh", "-euc", script, "container", *self._become()]

    def _script(self, root: str) -> list[str]:
        lines = ["path=$PATH PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
        lines += [f"mount -t tmpfs -o size=1m,mode=0755 root {root}", f"cd {root}", "mkdir proc dev tmp run"]
        if self.has_tmp:
            lines.append("mount -t tmpfs -o mode=1777 tmp tmp")
        lines.append("mkdir dev/shm")
        for name in _DEVICES:
            lines += [f"touch dev/{name}", f"mount --bind /dev/{name} dev/{name}"]
        mounts = sorted([*_system(), *self.mounts], key=lambda mount: mount.target)
        for mount in mounts:
            target = shlex.quote(mount.target.lstrip("/"))
            lines += [f"mkdir -p {target}", f"mount --bind {shlex.quote(str(mount.source))} {target}"]
        lines += [f"ln -s {os.readlink(f'/{name}')} {name}" for name in _SYSTEM if Path(f"/{name}").is_symlink()]
        lines += ["mount -t proc proc proc", "pivot_root . .", "umount -l ."]
        for mount in reversed(mounts):
            if not mount.is_writable:
                lines.append(f"mount -o remount,bind,ro {shlex.quote(mount.target)}")
        return [*lines, "mount -o remount,bind,ro /", "cd /", "PATH=$path", 'exec "$@"']

    def _become(self) -> list[str]:
        if not self.uid:
            return []
        groups = ["--groups", ",".join(map(str, self.groups))] if self.groups else ["--clear-groups"]
        alone = ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        return ["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", *groups, *alone, "--"]


def _system() -> list[Mount]:
    folders = [Path(f"/{name}") for name in _SYSTEM]
    return [Mount(folder, str(folder)) for folder in folders if folder.is_dir() and not folder.is_symlink()]


def python_mounts(*, only_python: bool = False) -> tuple[Mount, ...]:
    """Returns mounts of this interpreter, at the paths that they have here.

    Args:
        only_python: Leave out the packages that it has here, and this project.
    """
    paths = {Path(sys.base_prefix)}
    if not only_python:
        paths |= {Path(sys.prefix), Path(__file__).parents[2]}
    return tuple(Mount(path, str(path)) for path in paths if path != Path("/usr"))


def skip_unless_allowed() -> None:
    """Skips a test where namespaces and mounts of one's own are not to be had."""
    if os.geteuid() != 0:
        pytest.skip("containers need root: to mount, and to become other users")
    for program in ("unshare", "setpriv", "pivot_root"):
        if not shutil.which(program):
            pytest.skip(f"there is no {program}")
    probe = [*_UNSHARE, "mount", "-t", "tmpfs", "probe", "/mnt"]
    made = subprocess.run(probe, check=False, capture_output=True, text=True, timeout=EVENT_S)
    if made.returncode:
        pytest.skip(f"namespaces cannot be made here: {made.stderr.strip()}")


class ContainerProcess(subprocess.Popen[str]):
    """What runs in a container, seen from here: signals go to the first process in it, the init of its pids."""

    def init_pid(self) -> int | None:
        """Returns that process's pid in this namespace; None if it has ended."""
        deadline = time.monotonic() + EVENT_S
        while self.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                if children := psutil.Process(self.pid).children():
                    return int(children[0].pid)
            assert time.monotonic() < deadline, f"{self.args!r} made no process within {EVENT_S} s"
            time.sleep(_LOOK_S)  # the kernel tells nobody
        return None

    def send_signal(self, sig: int) -> None:
        """Sends a signal to the container's init; those that it does not handle, but SIGKILL, it never gets."""
        if (pid := self.init_pid()) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sig)


class Pod:
    """What the containers of one pod share: a tmpfs as /dev/shm, and a folder for sockets.

    Args:
        folder: An empty one of the test's own.
        shm_bytes: Size of the tmpfs.
    """

    def __init__(self, folder: Path, shm_bytes: int = 512 << 20) -> None:
        self.shm, self.sockets = folder / "shm", folder / "sockets"
        self._folder = folder
        self._roots = itertools.count()
        self.shm.mkdir()
        self.sockets.mkdir()
        # As an engine makes them: root's, and open to all.
        self.sockets.chmod(0o777)
        options = f"size={shm_bytes},mode=0777"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "forebay-test", str(self.shm)], check=True)

    @property
    def shared(self) -> tuple[Mount, ...]:
        """What a daemon and its trainer have in common."""
        return Mount(self.shm, "/dev/shm", True), Mount(self.sockets, "/run/forebay", True)

    def wrapper(self, container: Container) -> list[str]:
        """Returns a command in front of what is to run in a new container."""
        root = self._folder / f"root-{next(self._roots)}"
        root.mkdir()
        return container.wrapper(root)

    def run(
        self, container: Container, *words: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in a new container, to its end."""
        command = [*self.wrapper(container), *words]
        return subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=2 * EVENT_S, env=environment
        )

    def close(self) -> None:
        """Gives the tmpfs back."""
        # Lazily, because a process that a failed test left would keep it.
        subprocess.run(["umount", "--lazy", self.shm], check=True)


class ContainedDaemon:
    """A daemon that runs by an image's entry point, in a container.

    Args:
        pod: Whose.
        container: It.
        words: The entry point.
        environment: All of its variables.
        log: Where its log goes.

    Attributes:
        control_endpoint: Where it is reached, also from outside.
        trainer_endpoint: Where trainers of its pod attach.
    """

    def __init__(
        self,
        pod: Pod,
        container: Container,
        words: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
    ) -> None:
        self.control_endpoint = environment["FOREBAY_CONTROL_ENDPOINT"]
        self.trainer_endpoint = environment["FOREBAY_TRAINER_ENDPOINT"]
        self.environment = dict(environment)
        self.log = log
        self._logged_before = log.stat().st_size if log.exists() else 0
        with log.open("a") as stream:
            self.process = ContainerProcess(
                [*pod.wrapper(container), *words],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                text=True,
            )

    def until_ready(self) -> None:
        """Waits until it says that it serves."""
        deadline = time.monotonic() + EVENT_S
        while '"event": "serving"' not in self.words():
            assert self.process.poll() is None, f"the daemon ended: {self.words()}"
            assert time.monotonic() < deadline, f"the daemon was not ready within {EVENT_S} s: {self.words()}"
            time.sleep(_LOOK_S)

    def words(self) -> str:
        """Returns what it has logged; those before it did so in the same file."""
        return self.log.read_bytes()[self._logged_before :].decode()

    def in_it(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in the same container, as an engine's `exec` and its health checks do."""
        enter = ["nsenter", f"--target={self.process.init_pid()}", "--mount", "--pid", "--ipc", "--root", "--wd"]
        user = ["--setuid", str(UID), "--setgid", str(UID)]
        command = [*enter, *user, "--", *words]
        return subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=EVENT_S, env=self.environment
        )

    def close(self) -> None:
        """Stops it in order; kills it if it does not end."""
        self.process.terminate()
        try:
            self.process.wait(EVENT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(EVENT_S)
