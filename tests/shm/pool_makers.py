"""How tests make pools, fill their slots, and see what lies in a folder."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import numpy as np

from forebay.shm import Envelope, Pool, SlotState

from .processes import this_peer

SLOT_BYTES = 20_000
OWN = """
pool = Pool(Path(sys.argv[1]), slot_count=3, slot_bytes=20_000, remembered_keys=2, peer=PEER, epoch="kid")
say("owns")
pause()
say(*(slot.state.name for slot in pool.found_slots()))
pause()
pool.close()
"""


def make_pool(path: Path, slot_count: int = 3, slot_bytes: int = SLOT_BYTES, epoch: str = "epoch") -> Pool:
    return Pool(
        path, slot_count=slot_count, slot_bytes=slot_bytes, remembered_keys=2, peer=this_peer(), epoch=epoch
    )


def fill(pool: Pool, index: int, generation: int = 1) -> bytes:
    """Publishes a micro-batch in a slot and returns its body."""
    body = bytes(np.random.default_rng(index).bytes(10_000))
    envelope = Envelope(queue="q", key=f"key-{index}", attempt="a", manifest=b"m")
    pool.files[index].write_loan(generation, msgspec.msgpack.encode(envelope), len(body))
    pool.files[index].body(0, len(body))[:] = body
    pool.files[index].write_state(SlotState.READY, sequence=index)
    return body


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Returns every file under a folder: its inode, mode and contents."""
    return {
        str(file.relative_to(folder)): (
            file.lstat().st_ino,
            file.lstat().st_mode,
            file.read_bytes() if stat.S_ISREG(file.lstat().st_mode) else b"",
        )
        for file in sorted(folder.rglob("*"))
    }


def states(pool: Pool) -> list[tuple[str, int]]:
    return [(slot.state.name, slot.generation) for slot in pool.found_slots()]
