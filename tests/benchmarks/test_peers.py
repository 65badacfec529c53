"""Each way of the benchmark of ingest, with real processes and small micro-batches."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from forebay.benchmarks.ingest_result import WAYS, IngestBenchSettings
from forebay.benchmarks.ingest_ways import MissingPeerError, Size, open_way
from forebay.benchmarks.peers.region import Region, digest, map_warm
from forebay.wire import GIB, MIB, BrokenError

NEEDED = {"grpc_unary": "grpc", "grpc_stream": "grpc", "flight": "pyarrow", "transfer_queue": "transfer_queue"}
SETTINGS = IngestBenchSettings()

pytestmark = pytest.mark.usefixtures("shm_dir")


@pytest.fixture
def source() -> Iterator[Region]:
    with Region(5 * MIB) as region:
        region.fill()
        yield region


@pytest.fixture
def target() -> Iterator[Region]:
    with Region(5 * MIB) as region:
        yield region


def is_here(way: str) -> bool:
    return way not in NEEDED or importlib.util.find_spec(NEEDED[way]) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", WAYS)
def test_every_byte_arrives_whatever_the_size_and_the_leaves(name: str, source: Region, target: Region) -> None:
    if not is_here(name):
        pytest.skip(f"{NEEDED[name]} is not installed")
    sent = map_warm(source.path)
    largest = Size.of(5)
    with open_way(name, largest, source, target, SETTINGS) as way:
        for size in (largest, Size.of(4.7, 3), Size.of(0.01, 7), largest):
            target.clear()
            way.check(size, digest(sent[: size.nbytes]))
            assert way.send(size) > 0
        children = psutil.Process().children()
        assert len(children) == 2
    assert not any(child.is_running() for child in children)


@pytest.mark.parametrize("name", ["raw_tcp", "forebay_ipc"])
def test_bytes_that_are_others_are_an_error(name: str, source: Region, target: Region) -> None:
    size = Size.of(1)
    with (
        pytest.raises(BrokenError, match=f"the bytes that {name} brought are others"),
        open_way(name, size, source, target, SETTINGS) as way,
    ):
        way.check(size, "0" * 16)
    assert not psutil.Process().children()


@pytest.mark.parametrize("name", ["grpc_unary", "flight"])
def test_a_peer_that_is_not_installed_is_missing(
    name: str, source: Region, target: Region, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{NEEDED[name]}.py").write_text("raise ModuleNotFoundError('nobody installed it', name=__name__)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with (
        pytest.raises(MissingPeerError, match="not installed: nobody installed it"),
        open_way(name, Size.of(1), source, target, SETTINGS),
    ):
        pass
    assert not psutil.Process().children()


def test_a_pickled_message_that_grpc_cannot_hold_is_not_tried(source: Region, target: Region) -> None:
    with (
        pytest.raises(MissingPeerError, match="a gRPC message holds 2 GiB at most"),
        open_way("grpc_unary", Size(2 * GIB, 1), source, target, SETTINGS),
    ):
        pass


def test_a_child_that_ends_is_named(source: Region, target: Region) -> None:
    with (
        pytest.raises(BrokenError, match=r"sender of forebay_stage \(pid \d+\) ended when it should not have"),
        open_way("forebay_ipc", Size.of(1), source, target, SETTINGS) as way,
    ):
        way.send(Size.of(5))  # more than the daemon's slot may hold
    assert not psutil.Process().children()


@pytest.mark.parametrize(("mib", "leaves"), [(1, 1), (1, 3), (0.5, 64), (0.0001, 5)])
def test_leaves_follow_each_other_without_gaps(mib: float, leaves: int) -> None:
    size = Size.of(mib, leaves)
    assert size.leaf_bytes % 64 == 0
    assert size.leaf_bytes > 0
    assert size.nbytes == size.leaf_bytes * leaves
    assert size.nbytes <= max(mib * MIB, 64 * leaves)


def test_a_region_has_no_name_and_its_bytes_can_be_told_again() -> None:
    with Region(9 * MIB) as one, Region(9 * MIB) as other:
        one.fill()
        other.fill()
        told = digest(map_warm(one.path))
        assert told == digest(map_warm(other.path))
        other.clear()
        assert not map_warm(other.path).any()
        assert "(deleted)" in str(Path(one.path).readlink())
    assert not Path(one.path).exists()
