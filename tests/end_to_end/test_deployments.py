"""Wrong deployments explain themselves: each is told apart from the others, in one line, with what to change."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import LocalDaemon

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting and becoming another user need root")

ATTACH = """
import os, sys
import forebay
attach = forebay.attach  # imported while this user may still read the interpreter's own files
if len(sys.argv) > 2:
    os.setuid(int(sys.argv[2]))
try:
    attach(endpoint=sys.argv[1], timeout_s=2.0).close()
    print("attached")
except forebay.ForebayError as error:
    print(error)
"""
STATUS = """
import asyncio, sys
import forebay
async def ask():
    async with forebay.StagingClient(sys.argv[1], timeout_s=1.0) as client:
        await client.status()
    print("answered")
try:
    asyncio.run(ask())
except forebay.ForebayError as error:
    print(error)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder outside of shared memory that everybody may enter, with a short name."""
    with tempfile.TemporaryDirectory(prefix="forebay-test-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def daemon(shm_dir: Path, folder: Path) -> Iterator[LocalDaemon]:
    endpoints: dict[str, Any] = {
        f"{name}_endpoint": f"ipc://{folder}/{name}.sock" for name in ("control", "data", "trainer")
    }
    with LocalDaemon(pool=str(shm_dir / "pool"), slots=1, slot_initial_bytes=1 << 20, **endpoints) as daemon:
        yield daemon


def said(code: str, *arguments: str, before: Sequence[str] = ()) -> str:
    """Runs a client in a mount namespace of its own, after some commands there; returns what it says."""
    python = [sys.executable, "-c", code, *arguments]
    environment = os.environ | {"PYTHONPATH": str(Path(forebay.__file__).parents[1])}
    shell = " && ".join(["mount --make-rprivate /", *before, 'exec "$@"'])
    command = ["unshare", "--mount", "sh", "-c", shell, "sh", *python] if before else python
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    return line


def test_a_trainer_where_all_is_right_attaches(daemon: LocalDaemon) -> None:
    assert said(ATTACH, daemon.trainer_endpoint) == "attached"


@needs_root
def test_another_shm_is_told(daemon: LocalDaemon) -> None:
    words = said(ATTACH, daemon.trainer_endpoint, before=["mount -t tmpfs -o size=8m other /dev/shm"])
    assert words.startswith(f"there is no {daemon.pool}/pool.json here, though its daemon runs: ")
    assert "this process sees another /dev/shm; have daemon and trainer share one /dev/shm" in words


@needs_root
def test_another_shm_with_a_pool_at_the_same_path_is_told(daemon: LocalDaemon, folder: Path) -> None:
    words = said(
        ATTACH,
        daemon.trainer_endpoint,
        before=[
            f"cp {daemon.pool}/pool.json {folder}/pool.json",
            "mount -t tmpfs -o size=8m other /dev/shm",
            f"mkdir -p {daemon.pool}",
            f'sed s/epoch...../epoch\\":\\"x/ {folder}/pool.json > {daemon.pool}/pool.json',
        ],
    )
    assert words.startswith(
        f"the pool {daemon.pool} that is seen from here is not the daemon's, but one of another"
    )


@needs_root
def test_a_shm_that_is_mounted_read_only_is_told(daemon: LocalDaemon) -> None:
    words = said(ATTACH, daemon.trainer_endpoint, before=["mount -o remount,ro,bind /dev/shm"])
    assert "is mounted read-only here, and a trainer keeps a lock in the pool; mount the pool's" in words


@needs_root
@pytest.mark.parametrize("code", [ATTACH, STATUS])
def test_a_private_tmp_is_told(daemon: LocalDaemon, folder: Path, code: str) -> None:
    endpoint = daemon.trainer_endpoint if code == ATTACH else daemon.control_endpoint
    # The folder alone: the interpreter may lie in /tmp as well.
    words = said(code, endpoint, before=[f"mount -t tmpfs -o size=8m other {folder}"])
    assert f": there is no {endpoint.removeprefix('ipc://')} here; start one (forebay serve), or set " in words
    assert "; if one runs, it is seen from elsewhere" in words
    assert "PrivateTmp" in words


@needs_root
@pytest.mark.parametrize("what", ["socket", "pool"])
def test_another_user_is_told_by_both_uids(daemon: LocalDaemon, folder: Path, what: str) -> None:
    path = folder / "trainer.sock"
    if what == "pool":
        path.chmod(0o666)
        path = daemon.pool
    words = said(ATTACH, daemon.trainer_endpoint, "65534")
    assert f"{path}" in words
    assert "is private to uid 0, and this process runs as uid 65534" in words
    assert "run both under one user, or in the group of the setting group" in words


def test_a_daemon_that_is_gone_is_told_from_one_that_is_elsewhere(daemon: LocalDaemon) -> None:
    daemon.process.kill()
    daemon.process.wait()
    assert "nobody listens at that socket any more: whoever made it is gone" in said(
        STATUS, daemon.control_endpoint
    )


def test_a_path_that_is_too_long_is_told_by_its_length() -> None:
    words = said(STATUS, "ipc:///run/" + "x" * 116)
    assert words.startswith("setting control_endpoint; got a path of 121 bytes, ")
    assert "limit 107 bytes for a Unix socket; choose a shorter folder" in words


@needs_root
def test_a_daemon_in_a_container_with_little_shm_says_need_free_and_where() -> None:
    code = """
import sys, forebay
try:
    forebay.local_daemon(slots=4).close()
except forebay.ForebayError as error:
    print(str(error).replace(chr(10), ' '))
"""
    words = said(code, before=["mount -t tmpfs -o size=64m other /dev/shm"])
    assert "shared memory at /dev/shm is too small" in words
    needed = re.search(r"limit (\d+) bytes needed", words)
    assert needed is not None
    assert int(needed[1]) > 4 * (64 << 20), "the slots alone have as many"
    assert "in a container, the size of its /dev/shm" in words
