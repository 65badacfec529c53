"""An orchestrator that fails at each point of its micro-batch's life."""

from __future__ import annotations

import signal

import pytest

from ..end_to_end.processes import see
from .conftest import NewScene, Recovering
from .scene import EARLY, EVERY_POINT, LATE, Scene, is_at_rest


def end_of_what_was_begun(scene: Scene) -> None:
    """Checks that nothing half-filled was lent, and that whatever was complete is trained once."""
    if scene.point == "waiting":
        scene.trainer = scene.new_trainer()
        scene.trainer.until("consumed", key="first0")
        scene.trainer.finish()
    if scene.point in EARLY:
        see(scene.daemon, is_at_rest)
        scene.train_anew()
    else:
        scene.let_go()
        scene.train()
        scene.assert_trained_once()


@EVERY_POINT
def test_an_orchestrator_that_is_killed_costs_at_most_what_it_had_not_staged(
    new_scene: NewScene, recovering: Recovering, point: str
) -> None:
    scene = new_scene()
    scene.reach(point)
    scene.orchestrator.kill()
    if point == "finished":
        scene.wake_daemon()
    if point in ("growing", "filling"):
        with recovering("orchestrator killed while filling: its slot is free, after a lease of 0.5 s"):
            see(scene.daemon, is_at_rest)
    end_of_what_was_begun(scene)


@EVERY_POINT
def test_an_orchestrator_that_is_terminated_gives_up_what_it_had_not_staged_at_once(
    new_scene: NewScene, recovering: Recovering, point: str
) -> None:
    # No lease ends here: the slots must come back because the orchestrator said so.
    scene = new_scene(fill_lease_s=3600)
    scene.reach(point)
    scene.orchestrator.process.send_signal(signal.SIGTERM)
    if point == "filling":
        scene.orchestrator.go_on()
    scene.orchestrator.until("cancelled")
    if point == "finished":
        scene.wake_daemon()
    if point in ("growing", "filling"):
        with recovering("orchestrator terminated while filling: its slot is free"):
            see(scene.daemon, is_at_rest)
    end_of_what_was_begun(scene)


@pytest.mark.parametrize("point", EARLY)
def test_an_orchestrator_that_stood_still_past_its_lease_sends_again_and_is_trained_once(
    new_scene: NewScene, recovering: Recovering, point: str
) -> None:
    scene = new_scene()
    scene.reach(point)
    scene.orchestrator.process.send_signal(signal.SIGSTOP)
    if point == "waiting":
        scene.trainer = scene.new_trainer(count=2)
        scene.trainer.until("consumed", key="first0")
    see(scene.daemon, is_at_rest)  # a slot that was granted to it meanwhile was taken back
    scene.orchestrator.process.send_signal(signal.SIGCONT)
    if point == "filling":
        scene.orchestrator.go_on()
    with recovering("orchestrator goes on after its lease: staged"):
        scene.orchestrator.until("staged")
    scene.train()
    scene.orchestrator.until("reached", state="consumed")
    scene.orchestrator.finish()
    scene.assert_trained_once()


@pytest.mark.parametrize("point", LATE)
def test_what_an_orchestrator_had_staged_is_trained_while_it_stands_still_and_it_hears_so_later(
    new_scene: NewScene, point: str
) -> None:
    scene = new_scene()
    scene.reach(point)
    scene.orchestrator.process.send_signal(signal.SIGSTOP)
    if point == "finished":
        scene.wake_daemon()
    scene.let_go()
    scene.train()
    see(scene.daemon, is_at_rest)
    scene.orchestrator.process.send_signal(signal.SIGCONT)
    scene.orchestrator.until("reached", state="consumed")
    scene.orchestrator.finish()
    scene.assert_trained_once()
