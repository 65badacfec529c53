"""A control group's limit counts for shared memory as much as the mount's size."""

from __future__ import annotations

import contextlib
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.shm import memory
from forebay.shm.cgroup import MemoryLimit, memory_limit
from forebay.wire import MIB, ShmFullError

from .processes import Spawn


def write_group(folder: Path, version: int, limit: str, usage: int, cached: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = (
        ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    prefix = "" if version == 2 else "total_"
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{usage}\n")
    half = cached // 2
    stat = f"anon 1\n{prefix}inactive_file {half}\n{prefix}active_file {cached - half}\n{prefix}shmem 9\n"
    (folder / "memory.stat").write_text(stat)


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    file = tmp_path / "groups"
    file.write_text("3:cpu:/other\n0::/unit/inner\n")
    return file


def test_the_tightest_group_around_counts(tmp_path: Path, groups: Path) -> None:
    mount = tmp_path / "mount"
    write_group(mount / "unit", 2, str(100 * MIB), 60 * MIB, 10 * MIB)
    write_group(mount / "unit/inner", 2, str(90 * MIB), 20 * MIB, 0)
    assert memory_limit(groups, mount) == MemoryLimit(mount / "unit", 100 * MIB, 50 * MIB)


def test_the_first_version_is_read_as_well(tmp_path: Path, groups: Path) -> None:
    groups.write_text("4:memory,hugetlb:/unit\n1:cpu:/else\n")
    mount = tmp_path / "mount"
    write_group(mount / "memory/unit", 1, str(100 * MIB), 60 * MIB, 10 * MIB)
    write_group(mount / "memory", 1, str((1 << 63) - 4096), 60 * MIB, 0)
    assert memory_limit(groups, mount) == MemoryLimit(mount / "memory/unit", 100 * MIB, 50 * MIB)


def test_in_a_container_that_sees_its_own_group_alone_the_mount_itself_counts(
    tmp_path: Path, groups: Path
) -> None:
    groups.write_text("0::/\n")
    write_group(tmp_path / "mount", 2, str(100 * MIB), 99 * MIB, 0)
    assert memory_limit(groups, tmp_path / "mount") == MemoryLimit(tmp_path / "mount", 100 * MIB, MIB)


def test_a_group_over_its_limit_has_no_room(tmp_path: Path, groups: Path) -> None:
    write_group(tmp_path / "mount", 2, str(MIB), 2 * MIB, 0)
    limit = memory_limit(groups, tmp_path / "mount")
    assert limit is not None
    assert limit.room_bytes == 0


@pytest.mark.parametrize("limit", ["max", "", "garbage"])
def test_without_a_limit_there_is_none(tmp_path: Path, groups: Path, limit: str) -> None:
    write_group(tmp_path / "mount/unit", 2, limit, 60 * MIB, 0)
    assert memory_limit(groups, tmp_path / "mount") is None
    assert memory_limit(tmp_path / "missing", tmp_path / "mount") is None


def test_a_growth_beyond_the_group_is_refused_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_limit", lambda: MemoryLimit(tmp_path, 100 * MIB, 50 * MIB))
    memory.check_room(tmp_path, 50 * MIB)
    memory.check_room(tmp_path, 0)
    with pytest.raises(ShmFullError) as caught:
        memory.check_room(tmp_path, 50 * MIB + 1)
    assert str(caught.value).startswith(f"the control group {tmp_path} may use {100 * MIB} bytes, and")
    assert "raise the memory limit" in str(caught.value)


# --- a real one ---


@contextlib.contextmanager
def real_group(limit_bytes: int) -> Iterator[Path]:
    """A control group of the test's own, below this process's, of whichever version is mounted."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    name = f"forebay-test-{uuid.uuid4().hex[:8]}"
    for _, controllers, group in lines:
        mount = Path("/sys/fs/cgroup") / ("memory" if controllers else "")
        limit = "memory.limit_in_bytes" if controllers else "memory.max"
        folder = mount / group.lstrip("/") / name
        if controllers and "memory" not in controllers.split(","):
            continue
        with contextlib.suppress(OSError):
            folder.mkdir()
            try:
                (folder / limit).write_text(str(limit_bytes))
                yield folder
            finally:
                folder.rmdir()
            return
    pytest.skip("making a control group with a memory limit needs root")


GROW = """
sys.stdin.readline()
file = SlotFile(Path(sys.argv[1]), 0)
try:
    file.reserve(int(sys.argv[2]))
    say("grown")
except ShmFullError as error:
    say(error)
"""


@pytest.mark.parametrize(("mib", "answer"), [(16, "grown"), (512, "the control group ")])
def test_a_daemon_in_a_small_group_is_refused_and_lives(
    shm_dir: Path, spawn: Spawn, mib: int, answer: str
) -> None:
    with real_group(128 * MIB) as group:
        child = spawn(GROW, shm_dir, mib * MIB)
        (group / "cgroup.procs").write_text(str(child.pid))
        child.go_on()
        assert child.hear().startswith(answer)
        assert child.finish() == 0
        # Its pages would keep the group.
        for file in shm_dir.iterdir():
            os.unlink(file)
    assert subprocess.run(["ls", group], check=False, capture_output=True).returncode != 0
