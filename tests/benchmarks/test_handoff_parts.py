"""What the benchmarks of small things are made of: child processes, moments, clocks, a transfer without copies."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from forebay.benchmarks.handoff_child import Child
from forebay.benchmarks.handoff_cpu import CpuMeter
from forebay.benchmarks.handoff_daemon import note_publications
from forebay.benchmarks.handoff_parties import trainer_process, wait_until_attached
from forebay.benchmarks.handoff_transfer import ViewTransfer
from forebay.benchmarks.handoff_words import Take
from forebay.daemon import local_daemon
from forebay.shm import SlotFile, SlotState
from forebay.trainer import StagingQueue, TrainerSettings
from forebay.wire import BrokenError, WaitTimeoutError

SILENT = ["json.tool"]
"""A program that says nothing before its input ends, and then fails, since nothing is no JSON."""


def test_a_child_that_says_nothing_is_a_timeout_that_says_what_was_waited_for() -> None:
    words = r"waited 0.01 s for the benchmark's mime \(pid \d+\) to wave"
    with pytest.raises(WaitTimeoutError, match=words), Child("mime", SILENT) as child:
        child.hear(Take, 0.01, "to wave")


def test_a_child_that_ends_badly_is_an_error_with_its_exit_code(capfd: pytest.CaptureFixture[str]) -> None:
    words = r"the benchmark's mime \(pid \d+\) ended with exit code 1"
    with pytest.raises(BrokenError, match=words), Child("mime", SILENT):
        pass
    assert "Expecting value" in capfd.readouterr().err


def test_a_child_that_ends_before_its_answer_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    child = Child("mime", SILENT)
    child.stop()
    words = "ended when it should not have; it said why on standard error"
    with pytest.raises(BrokenError, match=words), child:
        child.started(Take)
    assert "Expecting value" in capfd.readouterr().err


def test_a_block_that_raises_kills_the_child() -> None:
    with pytest.raises(ZeroDivisionError), Child("mime", SILENT) as child:
        raise ZeroDivisionError
    assert not Path(f"/proc/{child.pid}").exists()


@pytest.mark.slow
def test_a_trainer_whose_input_ends_within_a_request_ends_at_once(shm_dir: Path) -> None:
    with local_daemon(pool=str(shm_dir / "pool"), drain_s=0) as daemon:
        trainer = trainer_process(daemon.trainer_endpoint, 1)
        wait_until_attached(trainer)
        with pytest.raises(BrokenError, match="ended with exit code 1"), trainer:
            trainer.say(Take(1, 600.0))


def test_a_publication_is_noted_and_written(shm_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlotFile, "write_state", SlotFile.write_state)  # put back at the end
    moments = note_publications()
    file = SlotFile(shm_dir, 0)
    before = time.monotonic_ns()
    for state in (SlotState.FILLING, SlotState.READY, SlotState.LENT):
        file.write_state(state, sequence=7, holder="h" if state is SlotState.LENT else "")
        assert file.header().state is state
    assert file.header().holder == "h"
    assert len(moments) == 1
    assert before <= moments[0] <= time.monotonic_ns()
    file.close()


def test_a_view_transfer_hands_out_no_views() -> None:
    payload = {"x": np.arange(10, dtype=np.int32), "pad_id": 0}
    with StagingQueue(ViewTransfer(), settings=TrainerSettings(stage_batch="stage")) as queue:
        for key in ("a", "b"):
            queue.stage(payload, key=key)
            with queue.take(key) as batch:
                assert batch.tree == {"x": "['x']", "pad_id": 0}
                assert batch.host_bytes == 40


def test_a_meter_counts_a_process_by_its_own_clock() -> None:
    meter = CpuMeter({"me": os.getpid()})
    began_s = time.process_time()
    while time.process_time() < began_s + 0.02:
        pass
    assert 0.02 <= meter.lap()["me"] <= time.process_time()
    assert meter.lap()["me"] < time.process_time() - began_s


def test_words_survive_their_way_as_a_line() -> None:
    line = msgspec.json.encode(Take(3, 1.5))
    assert b"\n" not in line
    assert msgspec.json.decode(line, type=Take) == Take(3, 1.5)
