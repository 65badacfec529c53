"""What `forebay why` and `forebay status` say where a real party is dead, silent, or asks for the wrong key."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from typing import Any

import numpy as np

import forebay
from forebay.cli.stories import Case
from forebay.wire import Status

from .processes import EVENT_S, StartDaemon, StartParty, see, slot_in

LARGE = 200_000_000


def ask(daemon: forebay.LocalDaemon, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "forebay.cli", *words, "--endpoint", daemon.control_endpoint],
        capture_output=True,
        text=True,
        timeout=EVENT_S,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.stdout


def why(daemon: forebay.LocalDaemon, key: str) -> tuple[str, str]:
    """Returns the case, and all that is said."""
    found: dict[str, Any] = json.loads(ask(daemon, "why", key, "--json"))
    return found["case"], f"{found['words']}. {found['remedy']}"


def stage(daemon: forebay.LocalDaemon, *keys: str) -> None:
    async def run() -> None:
        async with forebay.StagingClient(daemon.control_endpoint) as client:
            for key in keys:
                await client.stage({"x": np.zeros(9, np.float32)}, key=key)

    asyncio.run(run())


def test_a_trainer_that_died_is_named_and_what_was_on_its_device_is_lost(
    start: StartParty, start_daemon: StartDaemon
) -> None:
    daemon = start_daemon(slots=3)
    trainer = start("trainer", daemon.trainer_endpoint, count=3, hold_batch=True)
    orchestrator = start("orchestrator", daemon.control_endpoint, count=3)
    trainer.until("took")
    orchestrator.finish()
    see(daemon, lambda status: bool(status.queues[0].on_device) and not status.queues[0].asks_s)
    case, words = why(daemon, "k0")
    assert case == Case.ON_DEVICE
    assert f" {trainer.process.pid} on " in words
    case, words = why(daemon, "k2")
    assert case in (Case.TRAINER_BUSY, Case.LENT)
    assert f" {trainer.process.pid} on " in words
    trainer.kill()
    see(daemon, lambda status: status.queues[0].trainer is None)
    case, words = why(daemon, "k0")
    assert case == Case.LOST
    assert f"pid {trainer.process.pid} on" in words
    case, words = why(daemon, "k2")
    assert case == Case.NO_TRAINER
    assert f" {trainer.process.pid} on " in words
    assert "see why it ended" in words
    assert "see why it ended" in " ".join(ask(daemon, "status").split())


def test_a_full_pool_is_told_with_who_holds_it_to_who_waits_for_a_slot(
    start: StartParty, start_daemon: StartDaemon
) -> None:
    daemon = start_daemon(slots=1)
    trainer = start("trainer", daemon.trainer_endpoint, hold_transfer=True)
    start("orchestrator", daemon.control_endpoint, count=2)
    trainer.until("transferring")
    see(daemon, lambda status: status.waiting_offers == 1)
    case, words = why(daemon, "k1")
    assert case == Case.WAITS_FOR_SLOT
    assert "'k0' with " in words
    assert f" {trainer.process.pid} on " in words
    assert why(daemon, "k0")[0] in (Case.LENT, Case.TRAINER_STILL)  # by how long it has been held


def test_a_trainer_that_waits_for_a_key_nobody_offers_is_told_with_that_key(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon(slots=2)
    stage(daemon, "step-7")
    code = (
        "import forebay, sys\n"
        "with forebay.attach(endpoint=sys.argv[1], timeout_s=20) as queue:\n"
        "    queue.take('step-8', timeout_s=60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, daemon.trainer_endpoint]) as trainer:
        try:
            see(daemon, lambda status: any(queue.waits_for for queue in status.queues))
            case, words = why(daemon, "step-8")
            assert case == Case.NEVER_OFFERED
            assert f"{trainer.pid} on " in words
            assert "has waited for it" in words
            assert "there is 'step-7'" in words
        finally:
            trainer.kill()


def test_a_sender_that_stands_still_is_named_silent_with_the_end_of_its_lease(
    start: StartParty, start_daemon: StartDaemon
) -> None:
    daemon = start_daemon(slots=1, fill_lease_s=60.0)
    sender = start("orchestrator", daemon.control_endpoint, nbytes=LARGE, hold_chunk=3)
    sender.until("filling")
    see(daemon, slot_in("FILLING", received=1))
    sender.process.send_signal(signal.SIGSTOP)
    try:
        see(daemon, _is_silent)
        case, words = why(daemon, "k0")
        assert case == Case.SENDER_SILENT
        assert f"orchestrator pid {sender.process.pid} on " in words
        assert "its lease ends in" in words
        assert "has been silent for" in " ".join(ask(daemon, "status").split())
    finally:
        os.kill(sender.process.pid, signal.SIGCONT)


def _is_silent(status: Status) -> bool:
    return any(slot.silent_s > 3.5 for slot in status.slots)


def test_what_was_trained_is_told_with_the_time_of_each_phase(
    start: StartParty, start_daemon: StartDaemon
) -> None:
    daemon = start_daemon(slots=1)
    trainer = start("trainer", daemon.trainer_endpoint)
    start("orchestrator", daemon.control_endpoint, until="consumed").until("reached")
    trainer.finish()
    case, words = why(daemon, "k0")
    assert case == Case.CONSUMED
    for phase in ("waiting for a slot", "filling", "READY", "lent", "on the device"):
        assert f"{phase} " in words
