"""What the host does to daemons and trainers: namespaces, too little memory, another configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from forebay.shm import FileLock, holder_path, this_peer
from forebay.wire import (
    PROTOCOL_VERSION,
    Attach,
    Attached,
    Done,
    FindPool,
    HostError,
    Lend,
    PoolFound,
    Promoted,
    TrainerReply,
    TrainerRequest,
    Want,
    decode_trainer_reply,
    encode_message,
)

from ..end_to_end.party import digest, micro_batch
from ..end_to_end.processes import EVENT_S, StartDaemon, StartParty, kill, see, slot_in
from .conftest import NewScene, Recovering
from .scene import SMALL_BYTES, is_at_rest

OWN_PIDS = ("unshare", "--pid", "--fork", "--kill-child")
MOUNT_BYTES = 8 << 20


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 8 MiB of the test's own."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={MOUNT_BYTES}", "forebay-test", str(folder)]
    made = subprocess.run(command, check=False, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_trainer_in_another_pid_namespace_is_seen_alive_and_dead_when_it_is_killed(
    new_scene: NewScene, start: StartParty, recovering: Recovering
) -> None:
    if not shutil.which("unshare") or subprocess.run([*OWN_PIDS, "true"], check=False).returncode:
        pytest.skip(f"{' '.join(OWN_PIDS)} is not allowed here")
    scene = new_scene()
    trainer = start("trainer", scene.daemon.trainer_endpoint, wrapper=OWN_PIDS, hold_transfer=True)
    trainer.until("attached")
    scene.reach("ready")
    trainer.until("transferring")
    [slot] = see(scene.daemon, slot_in("LENT")).slots
    assert slot.holder is not None
    assert slot.holder.pid == 1, "as a number it would name this machine's init, which is alive"
    trainer.kill()
    with recovering("trainer in another pid namespace killed: its slot is ready for the next one"):
        see(scene.daemon, slot_in("READY"))
    scene.train()
    scene.orchestrator.finish()
    scene.assert_trained_once()


@pytest.mark.parametrize("slots", [1, 2, 6])
def test_a_daemon_with_another_number_of_slots_adopts_all_that_there_was_in_order(
    start: StartParty, start_daemon: StartDaemon, slots: int
) -> None:
    first = start_daemon(slots=4)
    start("orchestrator", first.control_endpoint, count=4).finish()
    kill(first)
    second = start_daemon(slots=slots)
    assert len(see(second, lambda _: True).slots) == max(slots, 4), "none that holds something is given up"
    waiting = start("orchestrator", second.control_endpoint, first=4)
    trainer = start("trainer", second.trainer_endpoint, count=5)
    for index in range(5):
        assert trainer.until("took", key=f"k{index}")["digest"] == digest(micro_batch(f"k{index}", SMALL_BYTES))
    trainer.finish()
    waiting.finish()
    see(second, is_at_rest)


def test_a_mount_that_is_too_small_for_the_pool_ends_the_start_with_need_free_and_mount(
    start_daemon: StartDaemon, mount: Path
) -> None:
    # The slots' 16 MiB, and the journal of outcomes beside them.
    words = rf"shared memory at {mount} is too small .* got \d+ bytes free; limit 17\d{{6}} bytes needed"
    with pytest.raises(HostError, match=words):
        start_daemon(pool=str(mount / "pool"), slots=16, remembered_keys=100)
    with pytest.raises(HostError, match="remembered_keys"):  # where the journal alone is too large
        start_daemon(pool=str(mount / "pool"), slots=1)
    assert list(mount.iterdir()) == [], "nothing of it is left"
    start_daemon(pool=str(mount / "pool"), slots=2, remembered_keys=100)


def test_a_mount_that_is_too_small_for_a_slot_to_grow_refuses_that_micro_batch_and_serves_on(
    new_scene: NewScene, mount: Path
) -> None:
    scene = new_scene(pool=str(mount / "pool"), remembered_keys=100)
    refused = scene.offer("large", nbytes=2 * MOUNT_BYTES).until("refused", code="shm_full")
    assert f"shared memory at {mount} is too small" in refused["words"]
    scene.reach("ready")
    scene.train()
    scene.orchestrator.finish()
    scene.assert_trained_once()


class RawTrainer:
    """A trainer that says what it is told to, for what no sound one would say."""

    def __init__(self, endpoint: str) -> None:
        self._ids = iter(range(1, 1000))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.rcvtimeo = int(1000 * EVENT_S)
        self._socket.connect(endpoint)
        found = self.ask(FindPool(version=PROTOCOL_VERSION), PoolFound)
        self.holder = f"raw{os.getpid()}"
        self._lock = FileLock(holder_path(Path(found.pool), self.holder), this_peer("raw trainer"))
        attach = Attach(version=PROTOCOL_VERSION, peer=this_peer("raw"), queue="train", holder=self.holder)
        self.ask(attach, Attached)

    def ask(self, request: TrainerRequest, kind: type[Any]) -> Any:
        """Says something and returns the next answer of a kind."""
        self._socket.send(encode_message(msgspec.structs.replace(request, id=next(self._ids))))
        return self.until(kind)

    def until(self, kind: type[Any]) -> Any:
        while True:
            for frame in self._socket.recv_multipart():
                reply: TrainerReply = decode_trainer_reply(frame)
                if isinstance(reply, kind):
                    return reply

    def close(self) -> None:
        self._context.destroy(linger=0)
        self._lock.close()


def test_a_release_that_comes_late_is_counted_and_frees_nothing_of_the_generation_after_it(
    new_scene: NewScene,
) -> None:
    scene = new_scene()
    trainer = RawTrainer(scene.daemon.trainer_endpoint)
    try:
        first = scene.offer("first")
        lend = trainer.ask(Want(holder=trainer.holder, credit_total=2), Lend)
        first.finish()
        late = Promoted(holder=trainer.holder, slot=lend.slot, generation=lend.generation, key=lend.key)
        trainer.ask(late, Done)
        scene.reach("ready")
        again = trainer.until(Lend)
        assert (again.slot, again.key) == (lend.slot, "k0")
        assert again.generation > lend.generation
        for _ in range(2):
            trainer.ask(late, Done)  # its confirmation was lost, or it was long on its way
        status = see(scene.daemon, lambda _: True)
        [slot] = status.slots
        assert (slot.state, slot.generation, slot.key) == ("LENT", again.generation, "k0")
        assert status.counters["late_releases"] == 2
    finally:
        trainer.close()
    scene.train()
    scene.orchestrator.finish()
    scene.assert_trained_once()
