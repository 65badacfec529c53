"""The network between orchestrator and daemon, cut at each point of a micro-batch's life and mended."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay import TrainerSettings
from forebay.daemon import Settings
from forebay.wire import MIB

from ..end_to_end.processes import EVENT_S, Party, see, slot_in, words_of
from ..end_to_end.served import Engine, Served
from .cable import Cable
from .conftest import NewScene, Recovering
from .scene import EARLY, FAULT_S, HELD_BYTES, HELD_CHUNK, LATE, Scene, is_at_rest

ARRIVED = tuple(span * MIB for span in range(HELD_CHUNK - 1))
"""Where the spans begin that arrive before the sender stands still."""
HEARTBEAT_MS = int(os.environ.get("FAULT_HEARTBEAT_MS", "1000"))
"""After which a silent connection is given up in these tests; 0 for what everybody has, half a minute."""


@pytest.fixture
def cable() -> Iterator[Cable]:
    with Cable() as laid:
        yield laid


def new_wired_scene(new_scene: NewScene, cable: Cable, **settings: object) -> Scene:
    """Makes a scene whose orchestrator is at the far end of a cable."""
    if "insecure" in Settings.__dataclass_fields__:
        settings["insecure"] = True
    address = f"tcp://{cable.here}:*"
    scene = new_scene(control_endpoint=address, data_endpoint=address, **settings)
    scene.wrapper = cable.inside
    return scene


def reach_filling(scene: Scene) -> None:
    """Has all spans in front of the one that is held arrive."""
    scene.reach("filling")
    see(scene.daemon, slot_in("FILLING", received=len(ARRIVED) * MIB))


def all_is_trained(scene: Scene) -> None:
    scene.train()
    scene.orchestrator.until("reached", state="consumed")
    scene.orchestrator.finish()
    scene.assert_trained_once()


@pytest.mark.parametrize("point", EARLY)
def test_a_link_that_is_cut_past_the_lease_costs_a_second_sending_and_nothing_else(
    new_scene: NewScene, cable: Cable, recovering: Recovering, point: str
) -> None:
    scene = new_wired_scene(new_scene, cable)
    scene.reach(point)
    cable.cut()
    if point == "filling":
        scene.orchestrator.go_on()
    if point == "waiting":
        scene.trainer = scene.new_trainer(count=2)
        scene.trainer.until("consumed", key="first0")
    see(scene.daemon, is_at_rest)  # what was granted to it has run out, and nothing half-filled was lent
    cable.mend()
    with recovering(f"link mended after the lease, micro-batch {point}: staged"):
        scene.orchestrator.until("staged")
    all_is_trained(scene)


@pytest.mark.parametrize("point", LATE)
def test_what_was_staged_is_trained_while_its_link_is_cut_and_its_orchestrator_hears_so_later(
    new_scene: NewScene, cable: Cable, recovering: Recovering, point: str
) -> None:
    scene = new_wired_scene(new_scene, cable)
    scene.reach(point)
    cable.cut()
    if point == "finished":
        scene.wake_daemon()
    scene.let_go()
    scene.train()
    see(scene.daemon, is_at_rest)
    cable.mend()
    with recovering("link mended: the orchestrator knows what was trained meanwhile"):
        scene.orchestrator.until("reached", state="consumed")
    scene.orchestrator.finish()
    scene.assert_trained_once()


FAULTS = {
    "cut": (Cable.cut, Cable.mend),
    "swallowing packets": (Cable.swallow, Cable.deliver),
    "swallowing answers": (Cable.swallow_answers, Cable.deliver_answers),
}


@pytest.mark.parametrize("how", FAULTS)
def test_after_a_cut_within_the_lease_only_what_had_not_arrived_is_sent_again(
    new_scene: NewScene, cable: Cable, recovering: Recovering, how: str
) -> None:
    begin, end = FAULTS[how]
    scene = new_wired_scene(new_scene, cable, fill_lease_s=3600)
    reach_filling(scene)
    begin(cable)
    scene.orchestrator.go_on()
    scene.outlast_leases()
    end(cable)
    with recovering(f"link {how} for {FAULT_S:g} s within the lease, and mended: staged"):
        sent = scene.orchestrator.until("staged")["sent"]
    assert {sent[str(offset)] for offset in ARRIVED} == {1}, sent
    all_is_trained(scene)


def test_a_call_whose_answers_the_network_swallows_is_staged_once_and_trained_once_and_answered_by_its_repeat(
    new_scene: NewScene, cable: Cable
) -> None:
    scene = new_wired_scene(new_scene, cable)
    scene.trainer = scene.new_trainer()
    options: dict[str, Any] = {"hold_offer": True, "heartbeat_ms": HEARTBEAT_MS}
    sender = scene.offer("k", nbytes=1000, wrapper=cable.inside, **options)
    sender.until("connected")
    cable.swallow_answers()
    sender.go_on()
    scene.trainer.until("consumed")
    scene.trainer.finish()
    status = see(scene.daemon, is_at_rest)
    cable.until_given_up(sender.process.pid)  # else TCP itself would bring the first answer in the end
    cable.deliver_answers()
    assert sender.until("staged")["state"] == "consumed"
    sender.finish()
    assert status.counters["published"] == 1
    assert see(scene.daemon, is_at_rest).counters["published"] == 1


def test_after_a_link_that_came_back_with_another_port_only_what_had_not_arrived_is_sent_again(
    new_scene: NewScene, cable: Cable, recovering: Recovering
) -> None:
    scene = new_wired_scene(new_scene, cable, fill_lease_s=3600)
    scene.options = {"heartbeat_ms": HEARTBEAT_MS}
    reach_filling(scene)
    pid = scene.orchestrator.process.pid
    before = cable.ports(pid)
    cable.cut()
    with recovering(f"link cut: its connections are given up, heartbeat {HEARTBEAT_MS or 30_000} ms"):
        cable.until_given_up(pid)
    cable.mend()
    scene.orchestrator.go_on()
    with recovering("link mended, with new connections: staged"):
        sent = scene.orchestrator.until("staged")["sent"]
    assert before
    assert not before & cable.ports(pid)
    assert {sent[str(offset)] for offset in ARRIVED} == {1}, sent
    all_is_trained(scene)


@pytest.mark.parametrize("moment", ["in its payload", "while it runs"])
def test_a_step_of_a_worker_whose_link_is_cut_and_mended_runs_once_and_its_answer_arrives(
    cable: Cable, shm_dir: Path, moment: str
) -> None:
    runs, may_end = threading.Event(), threading.Event()

    def inside(_: int) -> None:
        runs.set()
        assert may_end.wait(EVENT_S)

    settings: dict[str, Any] = {"insecure": True} if "insecure" in TrainerSettings.__dataclass_fields__ else {}
    address = f"tcp://{cable.here}:*"
    served = Served(shm_dir, Engine(inside), worker_endpoint=address, worker_data_endpoint=address, **settings)
    words = words_of("caller", served.endpoint, nbytes=HELD_BYTES, hold_chunk=HELD_CHUNK)
    caller = Party(*words, wrapper=cable.inside)
    with served:
        try:
            caller.until("filling")
            if moment == "in its payload":
                cable.cut()
                caller.go_on()
            else:
                caller.go_on()
                assert runs.wait(EVENT_S)
                cable.cut()
                may_end.set()
            cable.mend()
            assert runs.wait(EVENT_S)
            may_end.set()
            caller.until("trained", number=1)
            caller.finish()
        finally:
            may_end.set()
            caller.close()
    assert served.engine.trained == [1]
