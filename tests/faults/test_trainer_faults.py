"""A trainer that fails at each point of its micro-batch's life; another follows, or it goes on itself."""

from __future__ import annotations

import signal

import pytest

from forebay.wire import MicroBatchGoneError

from ..end_to_end.processes import EVENT_S, Party, see, slot_in
from .conftest import NewScene, Recovering
from .scene import EARLY, EVERY_POINT, KEY, LATE, Scene


def new_far_scene(new_scene: NewScene, point: str) -> tuple[Scene, Party]:
    """Brings a micro-batch to a point, with a trainer that is a process of its own."""
    scene = new_scene()
    scene.is_far = True
    if point in (*EARLY, "ready"):
        scene.attend()
    scene.reach(point)
    assert isinstance(scene.trainer, Party)
    trainer, scene.trainer, scene.is_far = scene.trainer, None, False
    return scene, trainer


def outcome(scene: Scene) -> tuple[str, str]:
    """Waits for what becomes of `KEY`; returns its state and why."""
    try:
        return scene.wait(), ""
    except MicroBatchGoneError as gone:
        return gone.state, gone.reason


def trained_by_the_next(scene: Scene) -> None:
    scene.let_go()
    scene.train()
    scene.orchestrator.until("reached", state="consumed")
    scene.orchestrator.finish()
    scene.assert_trained_once()


def gone_and_trained_anew(scene: Scene, state: str) -> None:
    """Checks that the orchestrator hears what happened to its key; it may send the same one again."""
    scene.orchestrator.until("gone", key=KEY, state=state)
    scene.orchestrator.finish()
    scene.train_anew()


@EVERY_POINT
def test_a_trainer_that_is_killed_gives_its_slots_back_and_what_was_on_its_device_is_lost_by_name(
    new_scene: NewScene, recovering: Recovering, point: str
) -> None:
    scene, trainer = new_far_scene(new_scene, point)
    trainer.kill()
    if point == "transferring":
        with recovering("trainer killed: the slot that it was lent is ready for the next one"):
            see(scene.daemon, slot_in("READY"))
    if point not in ("on_device", "in_step", "finished"):
        trained_by_the_next(scene)
        return
    if point == "finished":
        scene.wake_daemon()
    with recovering("trainer killed: it is known what was lost on its device"):
        state, reason = outcome(scene)
    if point == "finished" and state == "consumed":
        return  # it had said so in time
    assert state == "lost"
    assert f"its trainer, trainer pid {trainer.process.pid} on " in reason
    gone_and_trained_anew(scene, "lost")


@EVERY_POINT
def test_a_trainer_that_is_terminated_says_what_becomes_of_all_that_it_had(
    new_scene: NewScene, point: str
) -> None:
    scene, trainer = new_far_scene(new_scene, point)
    trainer.process.send_signal(signal.SIGTERM)
    if point == "transferring":
        trainer.go_on()
    if point == "finished":
        scene.wake_daemon()
    assert trainer.process.wait(EVENT_S) == 0
    if point in (*EARLY, "ready"):
        trained_by_the_next(scene)
        return
    state, reason = outcome(scene)
    expected = {
        "transferring": ("lost", "its trainer detached before it was finished"),
        "on_device": ("lost", "its trainer detached before it was finished"),
        "in_step": ("dropped", "the trainer raised SystemExit"),
        "finished": ("consumed", ""),
    }
    assert (state, reason) == expected[point]
    if point == "finished":
        scene.orchestrator.until("reached", state="consumed")
        scene.orchestrator.finish()
        scene.assert_trained_once()
    else:
        gone_and_trained_anew(scene, state)


@pytest.mark.parametrize("point", LATE)
def test_of_a_trainer_that_stands_still_nothing_is_taken_and_it_is_named_to_whoever_wants_its_slot(
    new_scene: NewScene, point: str
) -> None:
    scene, trainer = new_far_scene(new_scene, point)
    trainer.process.send_signal(signal.SIGSTOP)
    if point == "finished":
        scene.wake_daemon()
    [before] = see(scene.daemon, lambda _: True).slots
    scene.outlast_leases()
    after = see(scene.daemon, lambda _: True)
    [slot], [queue] = after.slots, after.queues
    assert queue.trainer is not None
    assert queue.trainer.pid == trainer.process.pid
    other = scene.offer("other", wait_s=0)
    if point in ("ready", "transferring"):
        assert (slot.state, slot.generation, slot.key) == (before.state, before.generation, KEY)
        assert slot.age_s > before.age_s
        refused = other.until("refused", code="no_slot")
        assert f"slot 0 {slot.state} '{KEY}' for " in refused["words"]
        if point == "transferring":
            assert f" with trainer pid {trainer.process.pid} on " in refused["words"]
    else:
        other.until("staged")
        assert queue.on_device == (KEY,) or point == "finished"
    other.finish()
    trainer.process.send_signal(signal.SIGCONT)
    scene.trainer = trainer
    scene.let_go()
    scene.train()
    scene.orchestrator.until("reached", state="consumed")
    scene.orchestrator.finish()
    scene.ask(lambda client: client.reset())
    scene.assert_trained_once()
