"""What is read of a slot without a lease is right, or is not told."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from forebay.cli.slot_values import ReadSlot, open_slot, stats_of
from forebay.shm import Envelope, Pool, SlotFile, SlotState, SlotView, this_peer
from forebay.wire import DTYPES, UNLIMITED, HostError, Manifest, UsageError, default_registry, describe, flatten

TREE = {"x": np.arange(700_000, dtype=np.int32), "y": np.array([[1.5, np.nan], [np.inf, -2.0]])}
FLAT = flatten(TREE, registry=default_registry, limits=UNLIMITED)
MANIFEST = describe(FLAT, UNLIMITED)


@pytest.fixture
def file(shm_dir: Path) -> Iterator[SlotFile]:
    """A slot file that is READY."""
    file = SlotFile(shm_dir, 0)
    fill(file, 1)
    yield file
    file.close()


def fill(file: SlotFile, generation: int, state: SlotState = SlotState.READY) -> None:
    envelope = msgspec.msgpack.encode(Envelope("train", "k", "a", MANIFEST.encode(UNLIMITED)))
    file.reserve(MANIFEST.body_bytes + (1 << 16))
    file.remap()
    file.write_loan(generation, envelope, MANIFEST.body_bytes)
    for offset, leaf in zip(MANIFEST.offsets, FLAT.arrays, strict=True):
        file.body(offset, leaf.nbytes)[:] = leaf.tobytes()
    file.write_state(state, sequence=1)


def read(shm_dir: Path, generation: int = 1) -> ReadSlot:
    return ReadSlot(SlotView(shm_dir, 0), generation)


@pytest.mark.usefixtures("file")
def test_numbers_of_each_leaf_are_those_of_all_of_it(shm_dir: Path) -> None:
    x, y = read(shm_dir).stats(MANIFEST)
    assert (x.least, x.greatest, x.mean, x.nans, x.infs) == (0, 699_999, 349_999.5, 0, 0)
    assert (y.least, y.greatest, y.mean, y.nans, y.infs) == (-2.0, 1.5, -0.25, 1, 1)


@pytest.mark.usefixtures("file")
def test_a_part_is_that_part(shm_dir: Path) -> None:
    values = read(shm_dir).values(MANIFEST, 0, (slice(3, 6),))
    assert values.as_object() == {"path": "['x']", "shape": (3,), "values": [3, 4, 5]}
    assert "[3 4 5]" in str(values)
    assert read(shm_dir).values(MANIFEST, 1, ()).values == [[1.5, "nan"], ["inf", -2.0]]


@pytest.mark.usefixtures("file")
def test_many_values_are_shown_in_part_and_are_too_many_for_json(shm_dir: Path) -> None:
    values = read(shm_dir).values(MANIFEST, 0, ())
    assert len(str(values)) < 200
    with pytest.raises(UsageError, match="name a slice"):
        values.as_object()


@pytest.mark.parametrize("state", [SlotState.FREE, SlotState.FILLING])
def test_a_slot_that_holds_nothing_is_not_read(file: SlotFile, shm_dir: Path, state: SlotState) -> None:
    file.write_state(state)
    with pytest.raises(HostError, match="was freed"):
        read(shm_dir).stats(MANIFEST)


@pytest.mark.usefixtures("file")
def test_a_slot_of_another_loan_is_not_read(shm_dir: Path) -> None:
    with pytest.raises(HostError, match="generation"):
        read(shm_dir, generation=2).stats(MANIFEST)


@pytest.mark.parametrize("again", [False, True], ids=["freed", "filled again"])
def test_what_was_read_while_the_slot_was_freed_is_not_told(
    file: SlotFile, shm_dir: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    views = Manifest.views

    def views_then_freed(manifest: Manifest, body: Any) -> Any:
        found = views(manifest, body)
        file.write_state(SlotState.FREE)
        if again:
            fill(file, 2)
        return found

    monkeypatch.setattr(Manifest, "views", views_then_freed)
    with pytest.raises(HostError, match="freed while it was read"):
        read(shm_dir).stats(MANIFEST)
    file.write_state(SlotState.READY, sequence=1)
    with pytest.raises(HostError, match=r"freed|generation"):
        read(shm_dir).values(MANIFEST, 0, (0,))


def test_a_pool_of_another_daemon_is_not_read(shm_dir: Path) -> None:
    size: dict[str, Any] = {"slot_count": 1, "slot_bytes": 1 << 16, "remembered_keys": 8}
    pool = Pool(shm_dir / "pool", peer=this_peer("t"), epoch="one", **size)
    try:
        with pytest.raises(HostError, match="another daemon's"):
            open_slot(str(shm_dir / "pool"), "two", 0, 1)
        open_slot(str(shm_dir / "pool"), "one", 0, 1)
    finally:
        pool.close()


def test_a_pool_that_is_not_here_is_named(shm_dir: Path) -> None:
    with pytest.raises(HostError, match="another /dev/shm"):
        open_slot(str(shm_dir / "none"), "one", 0, 1)


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype_has_numbers(name: str) -> None:
    ones = np.ones(5, np.float32).astype(DTYPES[name])
    found = stats_of(ones)
    is_complex = name.startswith("complex")
    assert (found.least, found.greatest, found.mean) == ((None,) * 3 if is_complex else (1, 1, 1.0))
    assert (found.nans, found.infs) == (0, 0)


@pytest.mark.parametrize("name", ["float16", "float64", "bfloat16", "float8_e5m2", "complex64"])
def test_what_is_no_number_is_counted_and_left_out(name: str) -> None:
    found = stats_of(np.array([math.nan, math.inf, -math.inf, 2.0], np.float32).astype(DTYPES[name]))
    assert (found.nans, found.infs) == (1, 2)
    assert found.least in (2.0, None)


def test_of_nothing_there_are_no_numbers() -> None:
    assert stats_of(np.zeros((0, 3))).cells() == ("", "", "", 0, 0)
    assert stats_of(np.full(3, np.nan)).mean is None
    assert stats_of(np.array(7, np.uint64)).greatest == 7
    assert stats_of(np.array([2**64 - 1], np.uint64)).greatest == 2**64 - 1
