"""A step with a key and a payload trains that key once, whatever the daemon has for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import forebay

from .fed_engine import FENCE, Attached
from .fed_orchestrator import ROWS, batch, offer, slots, stage, wait
from .processes import EVENT_S, StartDaemon, all_free, see


def test_a_payload_that_is_the_same_is_not_transferred_and_the_slots_bytes_are_trained(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon()
    with Attached(daemon) as engine:
        engine.fence()
        stage(daemon, "k0")
        assert wait(daemon, "k0", "on_device") == "on_device"
        engine.fwd_bwd(batch("k0", "q0"), stage_key="k0", stage_timeout_s=EVENT_S)
        assert engine.trained == ["k0"]
        assert engine.transfer.issued == [FENCE, "k0"]
        assert wait(daemon, "k0") == "consumed"


def test_a_payload_that_is_the_same_waits_for_the_transfer_of_the_slots_bytes(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with Attached(daemon) as engine, ThreadPoolExecutor(1) as pool:
        engine.transfer.hold("k0")
        engine.fence()
        stage(daemon, "k0")
        assert engine.transfer.begun.wait(EVENT_S)
        step = pool.submit(engine.fwd_bwd, batch("k0", "q0"), "k0", stage_timeout_s=EVENT_S)
        engine.transfer.let_go()
        step.result(EVENT_S)
        assert engine.trained == ["k0"]
        assert engine.transfer.issued == [FENCE, "k0"]


@pytest.mark.parametrize("lies", ["on the device", "in its slot"])
def test_a_payload_that_is_not_the_same_drops_the_entry_and_is_trained_once(
    start_daemon: StartDaemon, lies: str
) -> None:
    daemon = start_daemon()
    other = batch("k1", "q1", rows=ROWS + 1)
    with Attached(daemon) as engine:
        stage(daemon, "k0", "k1", "k2")
        if lies == "on the device":
            engine.train(1)
            assert wait(daemon, "k1", "on_device") == "on_device"
            engine.fwd_bwd(other, stage_key="k1", stage_timeout_s=EVENT_S)
        else:
            with engine.queue.take("k0", timeout_s=EVENT_S):
                engine.fence()
                assert slots(daemon)["k1"] == "LENT"
                engine.fwd_bwd(other, stage_key="k1", stage_timeout_s=EVENT_S)
        engine.train(1)
        assert engine.trained[-2:] == ["q1", "k2"]
        assert "k1" not in engine.trained
        assert engine.queue.statistics.drops == {"mismatch": 1}
        assert wait(daemon, "k2") == "consumed"
        # Whoever stages the key once more has it not trained a second time.
        offer(daemon, "k1")
        stage(daemon, "k3")
        engine.train(1)
        assert engine.trained[-3:] == ["q1", "k2", "k3"]
        assert wait(daemon, "k1") == "consumed"
    see(daemon, all_free)


@pytest.mark.parametrize("key_is", ["unknown to the daemon", "ready and not lent"])
def test_a_key_that_is_not_there_is_trained_inline_and_then_consumed_for_the_orchestrator(
    start_daemon: StartDaemon, key_is: str
) -> None:
    daemon = start_daemon()
    # While p0 has the only place, nothing is asked for.
    with Attached(daemon, first="p0") as engine:
        if key_is == "ready and not lent":
            stage(daemon, "k0")
            engine.fence()
            assert slots(daemon) == {"k0": "READY"}
        engine.fwd_bwd(batch("k0", "q0"), stage_key="k0", stage_timeout_s=EVENT_S)
        engine.fence()
        assert wait(daemon, "k0") == "consumed"
        assert slots(daemon) == {}
        refusal = offer(daemon, "k0")
        assert isinstance(refusal, forebay.Refusal)
        assert refusal.code == "consumed"
        stage(daemon, "k1")
        engine.train(2)
        assert engine.trained == ["q0", "p0", "k1"]


def test_a_key_that_is_lent_while_a_step_trains_it_inline_is_trained_once(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()

    def meanwhile(name: str) -> None:
        if name == "q0":
            stage(daemon, "k0")
            assert wait(daemon, "k0", "on_device") == "on_device"

    with Attached(daemon, inside=meanwhile) as engine:
        engine.fence()
        engine.fwd_bwd(batch("k0", "q0"), stage_key="k0", stage_timeout_s=EVENT_S)
        assert engine.queue.keys == ()
        assert wait(daemon, "k0") == "consumed"
        stage(daemon, "k1")
        engine.train(1)
        assert engine.trained == ["q0", "k1"]
    see(daemon, all_free)


def test_an_inline_step_that_fails_leaves_what_the_daemon_has_for_its_key(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()

    def fail(name: str) -> None:
        if name == "q0":
            raise ZeroDivisionError

    with Attached(daemon, first="p0", inside=fail) as engine:
        stage(daemon, "k0")
        with pytest.raises(ZeroDivisionError):
            engine.fwd_bwd(batch("k0", "q0"), stage_key="k0", stage_timeout_s=EVENT_S)
        engine.train(2)
        assert engine.trained == ["q0", "p0", "k0"]
        assert wait(daemon, "k0") == "consumed"
