"""Chunks that are lost, damaged and repeated on their way to a worker: what is missing is sent again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay.wire import ChunkFault, ChunkHeader

from .lossy_router import LossyRouter
from .served import Served, talk

WIDE = {"x": np.arange(3 << 20, dtype=np.uint8).reshape(3, -1), "y": np.arange(7.0)}


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda _: [], None),
        (lambda body: [body, body], ChunkFault.REPEATED),
        (lambda body: [b"\xff" + body[1:]], ChunkFault.WRONG_CHECKSUM),
        (lambda body: [body[:-1]], ChunkFault.WRONG_LENGTH),
        (lambda body: [bytes(len(body)), body], ChunkFault.WRONG_CHECKSUM),
    ],
    ids=["lost", "twice", "damaged", "short", "damaged, then whole"],
)
def test_chunks_that_are_lost_or_damaged_are_sent_again_by_themselves(
    shm_dir: Path, damage: Callable[[bytes], list[bytes]], fault: ChunkFault | None
) -> None:
    met: set[int] = set()

    def first_of_each(header: ChunkHeader, body: bytes) -> list[bytes]:
        if header.span in met:
            return [body]
        met.add(header.span)
        return damage(body)

    def same(batch: Any) -> bool:
        return all(np.array_equal(batch[name], WIDE[name]) for name in WIDE)

    with (
        Served(shm_dir, methods={"same": same}) as served,
        LossyRouter(served.endpoint, shm_dir, damage=first_of_each) as router,
    ):
        assert talk(router.endpoint, lambda handle: handle.call("same", WIDE)) is True
        assert len(met) == 4
        # What comes again when all is complete belongs to nobody any more.
        assert fault is None or served.counters[fault] >= 3
        assert served.memory == 0


def test_only_what_is_missing_is_sent_again(shm_dir: Path) -> None:
    lost: list[ChunkHeader] = []

    def lose_one(header: ChunkHeader, body: bytes) -> list[bytes]:
        if header.span == 1 and not lost:
            lost.append(header)
            return []
        return [body]

    with (
        Served(shm_dir, methods={"take": lambda _: None}) as served,
        LossyRouter(served.endpoint, shm_dir, damage=lose_one) as router,
    ):
        talk(router.endpoint, lambda handle: handle.call("take", WIDE))
        assert Counter(chunk.span for chunk in router.chunks) == {0: 1, 1: 2, 2: 1, 3: 1}
