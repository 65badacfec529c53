"""A mount that somebody else fills: refusals that name it, no SIGBUS, and recovery when there is room again."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from forebay.daemon import local_daemon
from forebay.orchestrator_client import Refusal, Staged, StagingClient
from forebay.shm import memory
from forebay.wire import MIB, RefusalCode, ShmFullError

PATIENCE_S = 60.0
MOUNT_BYTES = 64 * MIB


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    """A small tmpfs of its own."""
    folder = tmp_path / "shm"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={MOUNT_BYTES}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(mount: Path, left_bytes: int) -> Path:
    """Takes all but that many bytes of a mount."""
    path = mount / "somebody else's"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, memory.free_bytes(mount) - left_bytes)
    return path


def test_a_mount_filled_by_others_refuses_by_name_and_recovers_by_itself(mount: Path, tmp_path: Path) -> None:
    settings = {f"{name}_endpoint": f"ipc://{tmp_path}/{name}" for name in ("control", "data", "trainer")}
    large = {"x": np.ones(16 * MIB, np.uint8)}

    async def main() -> None:
        async with StagingClient(settings["control_endpoint"], timeout_s=PATIENCE_S) as client:
            assert isinstance(await client.stage({"x": np.ones(9)}, key="small", queue="q"), Staged)
            foreign = fill(mount, 1 * MIB)
            refused = await client.stage(large, key="large", queue="q")
            assert isinstance(refused, Refusal)
            assert refused.code is RefusalCode.SHM_FULL
            for word in (
                str(mount),
                "bytes free",
                "bytes needed",
                "enlarge it",
                "send smaller micro-batches",
                "slot_max_bytes",
            ):
                assert word in refused.words
            # It serves on with what it has.
            assert isinstance(await client.stage({"x": np.ones(9)}, key="small 2", queue="q"), Staged)
            foreign.unlink()
            assert isinstance(await client.stage(large, key="large", queue="q"), Staged)

    with local_daemon(slots=3, slot_initial_bytes=1 * MIB, pool=str(mount / "pool"), **settings) as daemon:  # type: ignore[arg-type]
        asyncio.run(main())
        assert daemon.process.poll() is None


def test_room_that_vanishes_while_a_file_grows_leaves_the_file_as_it_was(
    mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = mount / "slot"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        mapped = memory.grow_mapped(fd, 1 * MIB, path=path)
        mapped[:4] = b"kept"
        touch = memory.touch_pages

        def touch_late(*where: object) -> None:
            # The look at the free room is over: now somebody takes it.
            fill(mount, 2 * MIB)
            touch(*where)  # type: ignore[arg-type]

        monkeypatch.setattr(memory, "touch_pages", touch_late)
        with pytest.raises(ShmFullError, match="bytes needed"):
            memory.grow_mapped(fd, 32 * MIB, path=path)
        assert os.fstat(fd).st_size == 1 * MIB
        assert mapped[:4] == b"kept"
        mapped[-4:] = b"last"
        (mount / "somebody else's").unlink()
        monkeypatch.setattr(memory, "touch_pages", touch)
        grown = memory.grow_mapped(fd, 32 * MIB, path=path)
        grown[-4:] = b"more"
    finally:
        os.close(fd)
