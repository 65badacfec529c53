"""A trainer that ends without closing its queue: the daemon hears what it trained, and nothing is left."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import forebay
from forebay.trainer import JaxTransfer, TrainerSettings
from forebay.wire import MicroBatchGoneError, TreeError

from .fed_orchestrator import keys, stage, wait
from .processes import EVENT_S, StartDaemon, all_free, see

LEAVER = Path(__file__).with_name("leaver.py")
STAGE = TrainerSettings(stage_batch="stage")


@pytest.mark.parametrize(
    ("end", "code"),
    [("falls off its end", 0), ("returns", 0), ("exits", 0), ("raises", 1)],
)
def test_the_daemon_hears_what_a_trainer_finished_that_ends_without_closing_its_queue(
    start_daemon: StartDaemon, end: str, code: int
) -> None:
    daemon = start_daemon()
    stage(daemon, *keys(4))
    command = [sys.executable, str(LEAVER), daemon.trainer_endpoint, "4", end]
    trainer = subprocess.run(command, capture_output=True, text=True, timeout=EVENT_S, check=False)
    assert trainer.returncode == code, trainer.stderr
    assert ("ZeroDivisionError" in trainer.stderr) == (end == "raises")
    assert [wait(daemon, key) for key in keys(3)] == ["consumed"] * 3
    with pytest.raises(MicroBatchGoneError, match="'k3' is lost"):
        wait(daemon, "k3")
    see(daemon, all_free)


def test_a_queue_that_was_dropped_without_being_closed_lets_the_next_one_attach(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    queue = forebay.attach(endpoint=daemon.trainer_endpoint, settings=STAGE)
    stage(daemon, "k0")
    with queue.take(timeout_s=EVENT_S):
        pass
    with pytest.warns(ResourceWarning, match="was never closed"):
        del queue
    gc.collect()
    with forebay.attach(endpoint=daemon.trainer_endpoint, settings=STAGE, timeout_s=EVENT_S) as following:
        assert wait(daemon, "k0") == "consumed"
        stage(daemon, "k1")
        with following.take(timeout_s=EVENT_S) as batch:
            assert batch.key == "k1"
    see(daemon, all_free)


def test_a_sharding_function_that_fails_for_a_lent_micro_batch_drops_that_one_alone(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon()

    def shard(path: str, leaf: jax.ShapeDtypeStruct) -> None:
        if path == "['name']" and leaf.shape == (len("broken"),):
            raise ZeroDivisionError("no mesh for it")

    with forebay.attach(endpoint=daemon.trainer_endpoint, shardings=shard, settings=STAGE) as queue:
        assert isinstance(queue._parts.transfer, JaxTransfer)
        stage(daemon, "broken", "k1")
        reason = r"the shardings' function failed for leaf \['name'\]: ZeroDivisionError: no mesh for it"
        with pytest.raises(TreeError, match=reason):
            queue.take(timeout_s=EVENT_S)
        with pytest.raises(MicroBatchGoneError, match=r"'broken' is dropped: .*no mesh for it"):
            wait(daemon, "broken")
        with queue.take(timeout_s=EVENT_S) as batch:
            assert batch.key == "k1"
        assert wait(daemon, "k1") == "consumed"
        assert queue.statistics.drops == {"rejected": 1}
    see(daemon, all_free)
