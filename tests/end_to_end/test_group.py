"""Who on this host may use a daemon's sockets and pool: its user, a group if there is one, and nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import forebay
from forebay import Staged, StagingClient
from forebay.daemon import Ready, local_daemon
from forebay.shm import group_id
from forebay.wire import HostError, SettingError, Status

from .processes import EVENT_S, all_free

PARTY = Path(__file__).with_name("group_party.py")
PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
OWNER, MEMBER, STRANGER, GROUP = 64_001, 64_002, 64_003, 64_010
"""Numbers that need no names: a daemon's user, a trainer's, somebody's, and a group of the first two."""

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else"),
    pytest.mark.slow,
]


@pytest.fixture
def place(shm_dir: Path) -> Path:
    """A folder that everybody may go through, as /run is, and that the daemon's user may use."""
    shm_dir.chmod(0o711)
    os.chown(shm_dir, OWNER, OWNER)
    return shm_dir


def run_as(role: str, user: int, *words: str, groups: str = "", **options: Any) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    environment |= {"PYTHONPATH": str(Path(forebay.__file__).parents[1])} | options.pop("env", {})
    command = [sys.executable, str(PARTY), role, str(user), groups, *words]
    return subprocess.Popen(command, env=environment, text=True, **options)


@contextlib.contextmanager
def daemon_of_owner(place: Path, **settings: Any) -> Iterator[Ready]:
    """Runs a daemon as a user that is not root."""
    own = {f"{name}_endpoint": f"ipc://{place}/{name}" for name in ("control", "data", "trainer")}
    own |= {"pool": str(place / "pool"), "slots": "2", "slot_initial_bytes": "65536", "drain_s": "0"} | settings
    ready_end, ready_fd = os.pipe()
    parent_fd, parent_end = os.pipe()
    environment = {f"FOREBAY_{name.upper()}": str(value) for name, value in own.items()}
    fds = (ready_fd, parent_fd)
    process = run_as("serve", OWNER, *map(str, fds), groups=str(GROUP), env=environment, pass_fds=fds)
    os.close(ready_fd)
    os.close(parent_fd)
    try:
        assert select.select([ready_end], [], [], EVENT_S)[0], "the daemon did not start"
        yield msgspec.json.decode(os.read(ready_end, 1 << 16), type=Ready)
    finally:
        os.close(parent_end)
        os.close(ready_end)
        process.wait(EVENT_S)


def look_as(user: int, place: Path, *, groups: str = "") -> dict[str, str]:
    process = run_as("look", user, str(place), groups=groups, stdout=subprocess.PIPE)
    told, _ = process.communicate(timeout=EVENT_S)
    result: dict[str, str] = json.loads(told)
    return result


def modes(place: Path) -> dict[str, tuple[int, int]]:
    """Returns mode and group of all that a daemon made."""
    found = {str(path.relative_to(place)): path.lstat() for path in place.rglob("*")}
    return {name: (stat.S_IMODE(status.st_mode), status.st_gid) for name, status in found.items()}


async def _stage(ready: Ready, key: str) -> None:
    async with StagingClient(ready.control_endpoint, timeout_s=EVENT_S) as client:
        assert isinstance(await client.stage({"x": np.arange(1000, dtype=np.int32)}, key=key), Staged)


def stage(ready: Ready, *keys: str) -> None:
    for key in keys:
        asyncio.run(_stage(ready, key))


def see(ready: Ready, is_so: Any) -> Status:
    async def ask() -> Status:
        async with StagingClient(ready.control_endpoint, timeout_s=EVENT_S) as client:
            async with asyncio.timeout(EVENT_S):
                while True:
                    status = await client.status()
                    if is_so(status):
                        return status

    return asyncio.run(ask())


PRIVATE = {
    "control": 0o600,
    "data": 0o600,
    "trainer": 0o600,
    "control.lock": 0o600,
    "data.lock": 0o600,
    "trainer.lock": 0o600,
    "pool": 0o700,
    "pool/lock": 0o600,
    "pool/pool.json": 0o600,
    "pool/outcomes": 0o600,
    "pool/holders": 0o700,
    "pool/slot-0000": 0o600,
    "pool/slot-0001": 0o600,
}
SHARED = {
    "control": 0o660,
    "data": 0o660,
    "trainer": 0o660,
    "pool": 0o710,
    "pool/pool.json": 0o640,
    "pool/holders": 0o3770,
    "pool/slot-0000": 0o640,
    "pool/slot-0001": 0o640,
}


def test_without_a_group_all_is_private_to_the_user(place: Path) -> None:
    with daemon_of_owner(place) as ready:
        stage(ready, "k")
        assert {name: mode for name, (mode, _) in modes(place).items()} == PRIVATE
        for user, groups in ((STRANGER, ""), (MEMBER, str(GROUP))):
            told = look_as(user, place, groups=groups)
            assert set(told.values()) == {"EACCES"}, told


def test_a_group_may_do_what_a_trainer_needs_and_strangers_nothing(place: Path) -> None:
    with daemon_of_owner(place, group=GROUP) as ready:
        stage(ready, "k")
        found = modes(place)
        assert {name: mode for name, (mode, _) in found.items()} == PRIVATE | SHARED
        assert {name for name, (_, gid) in found.items() if gid == GROUP} == SHARED.keys()
        assert set(look_as(STRANGER, place).values()) == {"EACCES"}
        assert look_as(MEMBER, place, groups=str(GROUP)) == {
            "connect control": "done",
            "connect data": "done",
            "connect trainer": "done",
            "read slot": "done",
            "write slot": "EACCES",
            "list pool": "EACCES",
            "read header": "done",
            "lock daemon": "EACCES",
            "make holder": "done",
            "make in pool": "EACCES",
            "remove slot": "EACCES",
        }


def test_a_trainer_of_another_user_in_the_group_attaches_and_trains(place: Path) -> None:
    with daemon_of_owner(place, group=GROUP) as ready:
        stage(ready, "a", "b")
        trainer = run_as("train", MEMBER, str(place), "a", "b", groups=str(GROUP), **PIPES)
        told, _ = trainer.communicate("\n", timeout=EVENT_S)
        assert trainer.returncode == 0
        assert [json.loads(line) for line in told.splitlines()] == [
            {"key": "a", "total": 499_500},
            {"key": "b", "total": 499_500},
            {"done": True},
        ]
        see(ready, lambda status: all_free(status) and not any(queue.trainer for queue in status.queues))
        assert list((place / "pool" / "holders").iterdir()) == []


def test_the_death_of_a_trainer_of_another_user_is_seen_by_its_lock(place: Path) -> None:
    with daemon_of_owner(place, group=GROUP) as ready:
        stage(ready, "a")
        trainer = run_as("train", MEMBER, str(place), "a", groups=str(GROUP), **PIPES)
        assert trainer.stdout is not None
        assert trainer.stdin is not None
        assert json.loads(trainer.stdout.readline())["key"] == "a"
        [holder] = (place / "pool" / "holders").iterdir()
        status = holder.stat()
        assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o640, MEMBER, GROUP)
        trainer.kill()
        trainer.wait()
        trainer.stdin.close()
        trainer.stdout.close()
        see(ready, lambda status: not any(queue.trainer for queue in status.queues))
        assert not holder.exists()


def test_a_trainer_of_a_stranger_cannot_even_connect(place: Path) -> None:
    with daemon_of_owner(place, group=GROUP):
        process = run_as("ask", STRANGER, str(place), stdout=subprocess.PIPE)
        told, _ = process.communicate(timeout=EVENT_S)
    assert json.loads(told)["error"] == "WaitTimeoutError"


def test_an_adopted_pool_has_the_modes_of_todays_setting(place: Path) -> None:
    for group, wanted in (("", PRIVATE), (str(GROUP), PRIVATE | SHARED), ("", PRIVATE)):
        with daemon_of_owner(place, group=group, keep_pool="true"):
            assert {name: mode for name, (mode, _) in modes(place).items()} == wanted


def test_a_pipe_or_a_link_that_a_member_left_among_the_holders_stops_no_daemon(place: Path) -> None:
    with daemon_of_owner(place, group=GROUP, keep_pool="true"):
        pass
    holders = place / "pool" / "holders"
    os.mkfifo(holders / "pipe")
    (holders / "link").symlink_to("/dev/zero")
    (holders / "folder").mkdir()
    for left in ("pipe", "link", "folder"):
        os.chown(holders / left, MEMBER, GROUP, follow_symlinks=False)
    with daemon_of_owner(place, group=GROUP) as ready:
        stage(ready, "k")


def test_locks_that_are_none_are_refused_to_a_member_and_stop_no_daemon(place: Path) -> None:
    with daemon_of_owner(place, group=GROUP) as ready:
        kinds = ("folder", "private", "socket", "closed", "replaced")
        poser = run_as("pose", MEMBER, str(place), *kinds, groups=str(GROUP), stdout=subprocess.PIPE)
        told, _ = poser.communicate(timeout=EVENT_S)
        answers = [json.loads(line) for line in told.splitlines()]
        assert [answer["kind"] for answer in answers] == [*["Refused"] * 4, "Attached"]
        words = [*["no regular file"] * 3, "may not read it", ""]
        for kind, answer, part in zip(kinds, answers, words, strict=True):
            assert part in answer["words"]
            assert not answer["words"] or f"holders/{kind}" in answer["words"]
        see(ready, lambda status: not any(queue.trainer for queue in status.queues))
        assert (place / "pool" / "holders" / "replaced").is_dir()
        stage(ready, "k")


def test_a_group_that_there_is_not_is_a_wrong_setting(shm_dir: Path) -> None:
    with pytest.raises(SettingError, match="setting group; got no-such-group; limit a group of this host"):
        group_id("no-such-group")
    with pytest.raises(HostError, match="setting group; got no-such-group"):
        local_daemon(pool=str(shm_dir / "pool"), group="no-such-group")
    assert list(shm_dir.iterdir()) == []
    assert (group_id(""), group_id(str(GROUP)), group_id("root")) == (None, GROUP, 0)
