"""A daemon that fails at each point of a micro-batch's life; another follows, or it goes on itself."""

from __future__ import annotations

import signal

import pytest

from ..end_to_end.processes import EVENT_S, kill
from .conftest import NewScene, Recovering
from .scene import EVERY_POINT, KEY, Scene


def all_is_trained(scene: Scene) -> None:
    """Checks that the orchestrator and the trainer go on by themselves, and train `KEY` once."""
    scene.let_go()
    scene.train()
    scene.orchestrator.until("reached", state="consumed")
    scene.orchestrator.finish()
    scene.assert_trained_once()


@EVERY_POINT
def test_a_daemon_that_is_killed_and_followed_by_another_costs_nothing(
    new_scene: NewScene, recovering: Recovering, point: str
) -> None:
    scene = new_scene()
    scene.reach(point)
    kill(scene.daemon)
    with recovering("daemon killed: the next one has adopted its pool"):
        scene.follow_daemon()
    with recovering(f"daemon killed and followed, micro-batch {point}: trained, and the orchestrator knows it"):
        scene.let_go()
        scene.train()
        scene.orchestrator.until("reached", state="consumed")
    scene.orchestrator.finish()
    scene.assert_trained_once()


@EVERY_POINT
def test_a_daemon_that_stood_still_past_every_lease_goes_on_and_nothing_is_lost_or_trained_twice(
    new_scene: NewScene, point: str
) -> None:
    scene = new_scene()
    scene.reach(point)
    scene.daemon.process.send_signal(signal.SIGSTOP)
    scene.outlast_leases()
    scene.wake_daemon()
    all_is_trained(scene)


@EVERY_POINT
def test_a_daemon_that_is_terminated_and_keeps_its_pool_costs_nothing_that_it_had_granted_a_slot(
    new_scene: NewScene, recovering: Recovering, point: str
) -> None:
    scene = new_scene(keep_pool=True, drain_s=30.0)
    scene.reach(point)
    scene.daemon.process.send_signal(signal.SIGTERM)
    if point == "finished":
        scene.wake_daemon()
    if point == "filling":
        scene.orchestrator.go_on()  # the daemon waits for it
        scene.orchestrator.until("staged")
    if point == "waiting":
        assert scene.orchestrator.until("refused")["code"] == "draining"
        scene.orchestrator.kill()
    assert scene.daemon.process.wait(EVENT_S) == 0
    with recovering("daemon terminated with keep_pool: the next one has adopted its pool"):
        scene.follow_daemon()
    if point == "waiting":
        scene.trainer = scene.new_trainer(count=2)
        scene.trainer.until("consumed", key="first0")
        scene.orchestrator = scene.offer("k", until="consumed")
    all_is_trained(scene)


@pytest.mark.parametrize("point", ["ready", "on_device", "in_step"])
def test_a_daemon_that_is_terminated_and_removes_its_pool_says_so_and_what_is_on_the_device_is_trained_once(
    new_scene: NewScene, point: str
) -> None:
    scene = new_scene()
    scene.reach(point)
    scene.daemon.process.send_signal(signal.SIGTERM)
    assert scene.daemon.process.wait(EVENT_S) == 0
    assert not scene.daemon.pool.exists()
    assert "stopped; still awaited" in scene.orchestrator.until("broken", key=KEY)["words"]
    scene.orchestrator.kill()
    scene.follow_daemon()
    if point == "ready":
        scene.train_anew()
    else:
        scene.let_go()
        scene.train()
        scene.assert_trained_once()
