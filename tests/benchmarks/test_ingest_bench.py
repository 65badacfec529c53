"""The benchmark of ingest, small, with real processes; no figure that depends on speed is asserted."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from forebay.benchmarks import ingest_bench
from forebay.benchmarks.ingest_keys import PROTECTIONS
from forebay.benchmarks.ingest_result import GROUPS, IngestBenchResult, IngestBenchSettings
from forebay.wire import SettingError, ShmFullError

TINY = IngestBenchSettings(
    payload_mib=3, leaves=2, pairs=2, linear_mib=(1, 2), memory_mib=(1, 2), first_mib=1, daemons=2
)
OWN = ("raw_tcp", "forebay_tcp", "raw_unix", "forebay_ipc")
ENDLESS = (
    "from forebay.benchmarks.ingest_bench import run\n"
    "from forebay.benchmarks.ingest_result import IngestBenchSettings\n"
    f"run(IngestBenchSettings(payload_mib=3, pairs=1000, groups=('peers',), ways={OWN!r}))"
)


def replace(**settings: object) -> IngestBenchSettings:
    return msgspec.structs.replace(TINY, **settings)


@pytest.mark.slow
@pytest.mark.usefixtures("shm_dir")
def test_all_groups_come_to_figures_and_leave_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    ways = (*OWN, *PROTECTIONS)
    result = ingest_bench.run(replace(ways=ways))
    assert set(result.ways) == set(ways)
    assert result.skipped == {}
    for way in result.ways.values():
        assert len(way.seconds) == TINY.pairs
        assert way.gb_s_spread[0] <= way.gb_s <= way.gb_s_spread[1]
        assert way.sender_private_mib > 1
        assert way.receiver_private_mib > 1
        assert way.sender_cpu_s_per_gb >= 0
        assert way.receiver_cpu_s_per_gb >= 0
    assert result.encrypted_over_plain is not None
    assert result.authenticated_over_plain is not None
    for name in ("leaves_64_over_1", "linear", "first_over_steady"):
        low, high = getattr(result, f"{name}_spread")
        assert 0 < low <= getattr(result, name) <= high
    assert set(result.daemon_private_mib) == {"1", "2"}
    assert result.daemon_private_mib_max == max(result.daemon_private_mib.values())
    assert msgspec.json.decode(msgspec.json.encode(result), type=IngestBenchResult) == result
    assert not psutil.Process().children()
    told = capfd.readouterr()
    assert told.out == ""
    assert all(line.startswith("bench ingest: ") for line in told.err.splitlines())
    assert "round 2 of 2" in told.err


@pytest.mark.slow
@pytest.mark.usefixtures("shm_dir")
def test_a_ratio_is_the_median_over_rounds_of_the_peers_seconds_over_ours() -> None:
    result = ingest_bench.run(replace(groups=("peers",), ways=OWN, pairs=3))
    for name, peer, own in (
        ("over_raw_tcp", "raw_tcp", "forebay_tcp"),
        ("over_raw_unix", "raw_unix", "forebay_ipc"),
    ):
        pairs = zip(result.ways[peer].seconds, result.ways[own].seconds, strict=True)
        ratios = [peer_s / own_s for peer_s, own_s in pairs]
        assert getattr(result, name) == statistics.median(ratios)
        assert getattr(result, f"{name}_spread") == (min(ratios), max(ratios))
    assert result.over_flight is None
    assert result.encrypted_over_plain is None
    assert result.leaves_64_over_1 is None
    assert result.daemon_private_mib_max is None


@pytest.mark.slow
@pytest.mark.usefixtures("shm_dir")
def test_what_keys_leave_is_the_median_over_rounds_of_the_seconds_without_them_over_those_with_them() -> None:
    result = ingest_bench.run(replace(groups=("keys",), pairs=3))
    assert set(result.ways) == {"forebay_tcp", *PROTECTIONS}
    for name, way in (
        ("encrypted_over_plain", "forebay_encrypted"),
        ("authenticated_over_plain", "forebay_authenticated"),
    ):
        pairs = zip(result.ways["forebay_tcp"].seconds, result.ways[way].seconds, strict=True)
        ratios = [plain_s / keyed_s for plain_s, keyed_s in pairs]
        assert getattr(result, name) == statistics.median(ratios)
        assert getattr(result, f"{name}_spread") == (min(ratios), max(ratios))
    assert result.over_raw_tcp is None


@pytest.mark.slow
@pytest.mark.usefixtures("shm_dir")
def test_a_way_alone_runs_in_its_group_and_leaves_the_others_without_a_way() -> None:
    result = ingest_bench.run(replace(groups=("keys", "peers"), ways=("raw_unix",), pairs=1))
    assert set(result.ways) == {"raw_unix"}


@pytest.mark.slow
@pytest.mark.usefixtures("shm_dir")
def test_a_missing_peer_is_skipped_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ModuleNotFoundError('nobody installed it', name=__name__)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = ingest_bench.run(replace(groups=("peers",), ways=("raw_tcp", "flight", "forebay_tcp"), pairs=1))
    assert result.skipped == {"flight": "not installed: nobody installed it"}
    assert set(result.ways) == {"raw_tcp", "forebay_tcp"}
    assert result.over_flight is None
    assert result.over_raw_tcp is not None
    assert "flight is skipped: not installed" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.usefixtures("shm_dir")
def test_an_interrupted_run_leaves_no_process_and_no_file(how: signal.Signals, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", ENDLESS], stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    for line in process.stderr:
        if "round 1 of" in line:
            break
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 8
    os.kill(process.pid, how)
    process.stderr.read()
    assert process.wait(60) != 0
    process.stderr.close()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
    assert not list(tmp_path.iterdir())


def test_too_little_shared_memory_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_bench, "free_bytes", lambda _: 1)
    with pytest.raises(ShmFullError, match="too small for the benchmark"):
        ingest_bench.run(TINY)
    assert not psutil.Process().children()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("payload_mib", 0),
        ("pairs", 0),
        ("linear_mib", (1, 8000)),
        ("memory_mib", ()),
        ("groups", ()),
        ("groups", ("peers", "speed")),
        ("ways", ("pigeon",)),
        ("connections", 0),
        ("codec", "zip"),
    ],
)
def test_a_wrong_setting_is_named_with_its_limit(name: str, value: object) -> None:
    with pytest.raises(SettingError, match=rf"setting {name}; got .*; limit "):
        replace(**{name: value})


def test_all_groups_are_on_by_default() -> None:
    assert IngestBenchSettings().groups == GROUPS
