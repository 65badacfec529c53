"""Every party killed at several moments of a micro-batch's life; a good run follows each time."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.wire import MicroBatchGoneError

from .party import digest, micro_batch
from .processes import EVENT_S, StartDaemon, StartParty, all_free, kill, see, slot_in

LARGE = 200_000_000


def good_run(start: StartParty, daemon: forebay.LocalDaemon, prefix: str = "good") -> None:
    """Stages and trains three micro-batches, more than there are slots in some of these pools."""
    trainer = start("trainer", daemon.trainer_endpoint, count=3)
    orchestrator = start("orchestrator", daemon.control_endpoint, count=3, prefix=prefix, until="consumed")
    for index in range(3):
        key = f"{prefix}{index}"
        assert trainer.until("took")["digest"] == digest(micro_batch(key, 3_000_000))
    trainer.finish()
    orchestrator.finish()


def wait_for(daemon: forebay.LocalDaemon, key: str, until: Any = "consumed") -> str:
    async def ask() -> str:
        async with forebay.StagingClient(daemon.control_endpoint) as client:
            return await client.wait(key, until=until, timeout_s=EVENT_S)

    return asyncio.run(ask())


def reset(daemon: forebay.LocalDaemon) -> int:
    async def ask() -> int:
        async with forebay.StagingClient(daemon.control_endpoint) as client:
            return await client.reset()

    return asyncio.run(ask())


# The orchestrator.


def test_a_sender_killed_while_filling_leaves_nothing_half_filled(
    start: StartParty, start_daemon: StartDaemon
) -> None:
    daemon = start_daemon(slots=1, fill_lease_s=0.5)
    sender = start("orchestrator", daemon.control_endpoint, nbytes=LARGE, prefix="half")
    see(daemon, slot_in("FILLING", received=1))
    sender.kill()
    trainer = start("trainer", daemon.trainer_endpoint)
    trainer.until("attached")
    see(daemon, all_free)
    start("orchestrator", daemon.control_endpoint, prefix="next").finish()
    assert trainer.until("took")["key"] == "next0"
    trainer.finish()


def test_a_sender_stopped_past_its_lease_goes_on_where_it_can(
    start: StartParty, start_daemon: StartDaemon
) -> None:
    daemon = start_daemon(slots=1, fill_lease_s=0.5)
    sender = start("orchestrator", daemon.control_endpoint, nbytes=LARGE, prefix="slow")
    see(daemon, slot_in("FILLING", received=1))
    sender.process.send_signal(signal.SIGSTOP)
    see(daemon, all_free)
    sender.process.send_signal(signal.SIGCONT)
    trainer = start("trainer", daemon.trainer_endpoint)
    assert trainer.until("took")["digest"] == digest(micro_batch("slow0", LARGE))
    trainer.finish()
    sender.finish()


def test_a_sender_killed_while_it_waits_for_a_slot_takes_none_for_long(
    start: StartParty, start_daemon: StartDaemon
) -> None:
    daemon = start_daemon(slots=1, fill_lease_s=0.5)
    start("orchestrator", daemon.control_endpoint).finish()
    waiting = start("orchestrator", daemon.control_endpoint, prefix="waiting")
    see(daemon, lambda status: status.waiting_offers == 1)
    waiting.kill()
    trainer = start("trainer", daemon.trainer_endpoint)
    assert trainer.until("took")["key"] == "k0"
    trainer.finish()
    good_run(start, daemon)


def test_what_a_killed_sender_had_staged_is_trained(start: StartParty, start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    sender = start("orchestrator", daemon.control_endpoint, until="consumed")
    sender.until("staged")
    sender.kill()
    trainer = start("trainer", daemon.trainer_endpoint)
    assert trainer.until("took")["key"] == "k0"
    trainer.finish()
    good_run(start, daemon)


# The trainer.


def test_a_trainer_killed_while_attached_frees_its_queue(start: StartParty, start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    trainer = start("trainer", daemon.trainer_endpoint)
    trainer.until("attached")
    trainer.kill()
    good_run(start, daemon)


def test_slots_lent_to_a_killed_trainer_come_back_in_order(start: StartParty, start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    start("orchestrator", daemon.control_endpoint, count=3).finish()
    trainer = start("trainer", daemon.trainer_endpoint, hold_transfer=True)
    trainer.until("transferring")
    lent = see(daemon, slot_in("LENT")).slots
    (holder,) = [slot.holder for slot in lent if slot.holder is not None]
    assert holder.pid == trainer.process.pid
    trainer.kill()
    follower = start("trainer", daemon.trainer_endpoint, count=3)
    assert [follower.until("took")["key"] for _ in range(3)] == ["k0", "k1", "k2"]
    follower.finish()
    good_run(start, daemon)


def test_what_a_killed_trainer_had_on_its_device_is_reported_lost_by_name(
    start: StartParty, start_daemon: StartDaemon
) -> None:
    daemon = start_daemon()
    start("orchestrator", daemon.control_endpoint).finish()
    trainer = start("trainer", daemon.trainer_endpoint, hold_batch=True)
    trainer.until("took")
    # Killed before it said so, its slot would come back instead: nothing is lost then.
    assert wait_for(daemon, "k0", until="on_device") == "on_device"
    trainer.kill()
    with pytest.raises(MicroBatchGoneError, match=rf"lost: .*pid {trainer.process.pid} ") as gone:
        wait_for(daemon, "k0")
    assert (gone.value.key, gone.value.state) == ("k0", "lost")
    # Lost is not trained: the same key may be sent again.
    follower = start("trainer", daemon.trainer_endpoint)
    start("orchestrator", daemon.control_endpoint, until="consumed").finish()
    follower.finish()


def test_a_stopped_trainer_keeps_what_it_holds(start: StartParty, start_daemon: StartDaemon) -> None:
    daemon = start_daemon(fill_lease_s=0.2)
    start("orchestrator", daemon.control_endpoint).finish()
    trainer = start("trainer", daemon.trainer_endpoint, hold_transfer=True)
    trainer.until("transferring")
    trainer.process.send_signal(signal.SIGSTOP)
    start("orchestrator", daemon.control_endpoint, prefix="other").finish()
    assert slot_in("LENT")(see(daemon, slot_in("READY")))
    trainer.process.send_signal(signal.SIGCONT)
    trainer.go_on()
    trainer.go_on()
    assert trainer.until("took")["digest"] == digest(micro_batch("k0", 3_000_000))
    trainer.finish()


# The daemon.


def test_a_daemon_killed_while_a_slot_fills_is_followed_by_one_that_gets_the_rest(
    start: StartParty, start_daemon: StartDaemon
) -> None:
    first = start_daemon()
    sender = start("orchestrator", first.control_endpoint, nbytes=LARGE, until="consumed")
    see(first, slot_in("FILLING", received=1))
    kill(first)
    second = start_daemon()
    trainer = start("trainer", second.trainer_endpoint)
    assert trainer.until("took")["digest"] == digest(micro_batch("k0", LARGE))
    trainer.finish()
    sender.finish()
    good_run(start, second)


def test_ready_micro_batches_of_a_killed_daemon_are_adopted_in_order(
    start: StartParty, start_daemon: StartDaemon
) -> None:
    first = start_daemon()
    start("orchestrator", first.control_endpoint, count=4).finish()
    kill(first)
    second = start_daemon()
    trainer = start("trainer", second.trainer_endpoint, count=4)
    for index in range(4):
        key = f"k{index}"
        assert trainer.until("took", key=key)["digest"] == digest(micro_batch(key, 3_000_000))
    trainer.finish()
    good_run(start, second)


def test_a_trainer_outlives_its_daemon_and_goes_on_with_the_next(
    start: StartParty, start_daemon: StartDaemon
) -> None:
    first = start_daemon()
    start("orchestrator", first.control_endpoint, count=3).finish()
    trainer = start("trainer", first.trainer_endpoint, count=3, hold_batch=True)
    took = trainer.until("took", key="k0")
    kill(first)
    second = start_daemon()
    trainer.go_on()
    assert trainer.until("still")["digest"] == took["digest"]
    for key in ("k1", "k2"):
        assert trainer.until("took")["digest"] == digest(micro_batch(key, 3_000_000))
        trainer.go_on()
    trainer.finish()
    assert wait_for(second, "k2") == "consumed"
    good_run(start, second)


def test_a_slot_lent_across_a_daemon_restart_is_known_since_when_and_released_once(
    start: StartParty, start_daemon: StartDaemon
) -> None:
    first = start_daemon(slots=1)
    start("orchestrator", first.control_endpoint).finish()
    trainer = start("trainer", first.trainer_endpoint, hold_transfer=True)
    trainer.until("transferring")
    [before] = see(first, slot_in("LENT")).slots
    seen_at = time.monotonic()
    kill(first)
    second = start_daemon(slots=1)
    looked_at = time.monotonic()
    [slot] = see(second, lambda status: any(queue.trainer for queue in status.queues)).slots
    assert slot.state == "LENT"
    lasted_s = looked_at - seen_at
    assert (slot.held_s - before.held_s >= lasted_s, slot.age_s - before.age_s >= lasted_s) == (True, True)
    trainer.go_on()
    assert trainer.until("took")["digest"] == digest(micro_batch("k0", 3_000_000))
    trainer.finish()
    see(second, all_free)
    good_run(start, second)


def test_a_trainer_that_stands_still_is_named_by_the_daemon_that_follows_and_then_goes_on(
    start: StartParty, start_daemon: StartDaemon
) -> None:
    first = start_daemon(slots=1)
    start("orchestrator", first.control_endpoint).finish()
    trainer = start("trainer", first.trainer_endpoint, hold_transfer=True)
    trainer.until("transferring")
    trainer.process.send_signal(signal.SIGSTOP)
    kill(first)
    second = start_daemon(slots=1)
    status = see(second, slot_in("LENT"))
    for peer in (status.queues[0].trainer, status.slots[0].holder):
        assert peer is not None
        assert peer.pid == trainer.process.pid
    assert not status.queues[0].trainer_is_back
    trainer.process.send_signal(signal.SIGCONT)
    see(second, lambda status: status.queues[0].trainer_is_back)
    trainer.go_on()
    assert trainer.until("took")["digest"] == digest(micro_batch("k0", 3_000_000))
    trainer.finish()
    see(second, all_free)


def test_a_trainer_that_died_with_its_daemon_gives_its_slots_back(
    start: StartParty, start_daemon: StartDaemon
) -> None:
    first = start_daemon()
    start("orchestrator", first.control_endpoint, count=2).finish()
    trainer = start("trainer", first.trainer_endpoint, hold_transfer=True)
    trainer.until("transferring")
    kill(first)
    trainer.kill()
    second = start_daemon()
    follower = start("trainer", second.trainer_endpoint, count=2)
    assert [follower.until("took")["key"] for _ in range(2)] == ["k0", "k1"]
    follower.finish()
    good_run(start, second)


def test_what_a_trainer_that_died_with_its_daemon_had_on_its_device_is_lost_by_its_name(
    start: StartParty, start_daemon: StartDaemon
) -> None:
    first = start_daemon()
    start("orchestrator", first.control_endpoint).finish()
    trainer = start("trainer", first.trainer_endpoint, hold_batch=True)
    trainer.until("took")
    assert wait_for(first, "k0", until="on_device") == "on_device"
    kill(first)
    trainer.kill()
    second = start_daemon()
    with pytest.raises(MicroBatchGoneError, match=rf"lost: .*pid {trainer.process.pid} on ") as gone:
        wait_for(second, "k0")
    assert (gone.value.key, gone.value.state) == ("k0", "lost")
    good_run(start, second)


def test_a_retry_across_a_daemon_restart_is_trained_once(start: StartParty, start_daemon: StartDaemon) -> None:
    first = start_daemon()
    start("orchestrator", first.control_endpoint).finish()
    trainer = start("trainer", first.trainer_endpoint, hold_batch=True)
    trainer.until("took")
    kill(first)
    second = start_daemon()
    # The new daemon knows of this key only what the trainer tells it.
    see(second, lambda status: any("k0" in queue.on_device for queue in status.queues))
    again = start("orchestrator", second.control_endpoint)
    assert again.until("refused", key="k0")["code"] == "in_use"
    trainer.go_on()
    trainer.until("consumed", key="k0")
    trainer.finish()


def test_a_key_that_was_consumed_before_its_daemon_was_killed_is_never_trained_again(
    start: StartParty, start_daemon: StartDaemon
) -> None:
    first = start_daemon()
    trainer = start("trainer", first.trainer_endpoint)
    start("orchestrator", first.control_endpoint, until="consumed").finish()
    trainer.finish()  # nobody but the journal knows of it any more
    for _ in range(2):
        kill(first)
        first = start_daemon()
        again = start("orchestrator", first.control_endpoint)
        assert again.until("refused", key="k0")["code"] == "consumed"
    good_run(start, first)


def test_what_was_on_the_device_of_a_trainer_that_died_with_its_daemon_is_reported_lost_by_name(
    start: StartParty, start_daemon: StartDaemon
) -> None:
    first = start_daemon()
    start("orchestrator", first.control_endpoint).finish()
    trainer = start("trainer", first.trainer_endpoint, hold_batch=True)
    trainer.until("took")
    assert wait_for(first, "k0", until="on_device") == "on_device"
    kill(first)
    trainer.kill()
    second = start_daemon()
    with pytest.raises(MicroBatchGoneError, match=r"lost: .*died before it was finished"):
        wait_for(second, "k0")
    good_run(start, second)


def test_twenty_killed_daemons_leave_one_pool(start: StartParty, start_daemon: StartDaemon, shm_dir: Path) -> None:
    for round_number in range(20):
        daemon = start_daemon(slots=2)
        prefix = f"round{round_number}-"
        start("orchestrator", daemon.control_endpoint, prefix=prefix, nbytes=1000, wait_s=0).finish()
        kill(daemon)
    assert [path.name for path in shm_dir.iterdir() if path.is_dir()] == ["pool"]
    assert sorted(path.name for path in (shm_dir / "pool").glob("slot-*")) == ["slot-0000", "slot-0001"]
    last = start_daemon(slots=2)
    assert reset(last) == 2
    good_run(start, last)


def test_sigterm_takes_no_new_offers_lets_filling_finish_and_removes_the_pool(
    start: StartParty, start_daemon: StartDaemon
) -> None:
    daemon = start_daemon(slots=1, drain_s=30.0)
    sender = start("orchestrator", daemon.control_endpoint, nbytes=LARGE)
    see(daemon, slot_in("FILLING", received=1))
    daemon.process.send_signal(signal.SIGTERM)
    assert sender.until("staged")["digest"] == digest(micro_batch("k0", LARGE))
    sender.finish()
    assert daemon.process.wait(EVENT_S) == 0
    assert not daemon.pool.exists()


def test_a_kept_pool_is_adopted_by_the_next_daemon(start: StartParty, start_daemon: StartDaemon) -> None:
    first = start_daemon(keep_pool=True)
    start("orchestrator", first.control_endpoint, count=2).finish()
    first.close()
    assert first.process.returncode == 0
    second = start_daemon()
    trainer = start("trainer", second.trainer_endpoint, count=2)
    assert [trainer.until("took")["key"] for _ in range(2)] == ["k0", "k1"]
    trainer.finish()
