"""The staging queue's benchmark, small, as its user runs it; no figure that depends on speed is asserted."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.benchmarks.stand_in import TimedEngine


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "forebay.cli", "bench", "queue", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("cap", [1, 2])
def test_the_device_never_holds_more_than_the_cap_and_the_running_one(cap: int, tmp_path: Path) -> None:
    picture = tmp_path / "timeline.png"
    done = bench(
        *("--json", "--payload-mib", "4", "--micro-batches", "6", "--pairs", "1", "--cap", str(cap)),
        *("--pop-transfer-mib", "16"),
        *("--timeline", str(picture)),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["max_live_device_sets"] == cap + 1
    assert result["pop_on_device_us_p50"] > 0
    assert result["stage_batch_us_p50"] > 0
    assert "timed wait" in result["compute"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_wrong_setting_is_one_line_and_exit_code_2() -> None:
    done = bench("--micro-batches", "2")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "forebay: setting micro_batches; got 2; limit 3 to 10000\n"


def test_the_stand_in_works_on_one_micro_batch_after_another() -> None:
    with TimedEngine(0.001) as engine:
        works = [engine.fwd_bwd(object(), key=str(number)) for number in range(3)]
        for work in works:
            assert work.block_until_ready().is_ready()
    for before, after in itertools.pairwise(works):
        assert before.ready_at <= after.began_at
