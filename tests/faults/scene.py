"""A micro-batch that is brought to one point of its life, with every party in sight."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from forebay import LocalDaemon, StagingClient
from forebay.wire import RefusedError, Status

from ..end_to_end.party import digest, micro_batch
from ..end_to_end.processes import EVENT_S, Party, StartDaemon, StartParty, see, slot_in
from .near import NearTrainer

SMALL_BYTES = 3_000_000
HELD_BYTES = 8_000_000
GROWN_BYTES = 300_000_000
"""Large enough that a slot which grows for it can be seen to."""

HELD_CHUNK = 4
LEASE_S = 0.5
FAULT_S = float(os.environ.get("FAULT_S", "1.5"))
"""How long a fault lasts that nothing tells the end of; longer than the lease."""
KEY = "k0"

EARLY = ("waiting", "growing", "filling")
"""Where no slot holds all of the micro-batch yet."""
LATE = ("ready", "transferring", "on_device", "in_step", "finished")
POINTS = (*EARLY, *LATE)
BYTES = dict.fromkeys(POINTS, SMALL_BYTES) | {"growing": GROWN_BYTES, "filling": HELD_BYTES}

Trainer = Party | NearTrainer
StartNear = Callable[..., NearTrainer]


def is_growing(status: Status) -> bool:
    return any(slot.state == "FILLING" and slot.key == KEY and not slot.expected_bytes for slot in status.slots)


def is_at_rest(status: Status) -> bool:
    """Whether the daemon holds nothing, and nobody waits for anything."""
    is_free = all(slot.state == "FREE" for slot in status.slots)
    return is_free and not status.waiting_offers and not any(queue.on_device for queue in status.queues)


class Scene:
    """One daemon with one slot, an orchestrator with the micro-batch `KEY`, and a trainer where there is one.

    Args:
        start: Starts orchestrators and trainers as processes.
        start_daemon: Starts daemons on one pool, so that one can follow another.
        start_near: Starts trainers in this process.
        settings: The daemon's.

    Attributes:
        daemon: The present one.
        orchestrator: Whoever sends `KEY` and waits until it is consumed.
        trainer: None while there is none.
        point: Where the micro-batch was brought to.
        is_far: Whether the trainer that comes next is a process of its own.
        wrapper: A command in front of the orchestrator of `KEY`.
        options: Of the orchestrator of `KEY`.
    """

    orchestrator: Party

    def __init__(
        self, start: StartParty, start_daemon: StartDaemon, start_near: StartNear, **settings: Any
    ) -> None:
        self._start, self._start_daemon, self._start_near = start, start_daemon, start_near
        self._settings: dict[str, Any] = {"slots": 1, "fill_lease_s": LEASE_S} | settings
        self.daemon: LocalDaemon = start_daemon(**self._settings)
        self.trainer: Trainer | None = None
        self.point = ""
        self.is_far = False
        self.wrapper: tuple[str, ...] = ()
        self.options: dict[str, Any] = {}

    # To the point.

    def reach(self, point: str) -> None:
        """Brings `KEY` to a point of its life."""
        self.point = point
        getattr(self, f"_until_{point}")()

    def _until_waiting(self) -> None:
        self.offer("first").finish()
        self._offer_key()
        see(self.daemon, lambda status: status.waiting_offers == 1)

    def _until_growing(self) -> None:
        self._offer_key()
        see(self.daemon, is_growing)

    def _until_filling(self) -> None:
        self._offer_key(hold_chunk=HELD_CHUNK)
        self.orchestrator.until("filling")
        see(self.daemon, slot_in("FILLING", received=1))

    def _until_ready(self) -> None:
        self._offer_key()
        self.orchestrator.until("staged")

    def _until_transferring(self) -> None:
        self.trainer = self.new_trainer(hold_transfer=True)
        self._until_ready()
        self.trainer.until("transferring")

    def _until_on_device(self) -> None:
        # Nothing is promoted ahead before the first step has asked for something.
        self.trainer = self.new_trainer(count=2, hold_take=1)
        self.offer("first")
        self.trainer.until("between")
        self._until_ready()
        self.wait(until="on_device")

    def _until_in_step(self) -> None:
        self.trainer = self.new_trainer(hold_batch=True, linger=True)
        self._until_ready()
        self.trainer.until("took")
        self.wait(until="on_device")

    def _until_finished(self) -> None:
        """Has the trainer finish it, and the daemon not say that it heard so."""
        self._until_in_step()
        self.daemon.process.send_signal(signal.SIGSTOP)
        assert self.trainer is not None
        self.trainer.go_on()
        self.trainer.until("consumed")

    # Parties.

    def offer(self, prefix: str, **options: Any) -> Party:
        """Starts an orchestrator that sends one micro-batch."""
        return self._start("orchestrator", self.daemon.control_endpoint, prefix=prefix, **options)

    def _offer_key(self, **options: Any) -> None:
        options = (
            {"nbytes": BYTES[self.point], "until": "consumed", "wrapper": self.wrapper} | self.options | options
        )
        self.orchestrator = self.offer("k", **options)

    def new_trainer(self, **options: Any) -> Trainer:
        """Starts a trainer and waits until it is attached."""
        endpoint = self.daemon.trainer_endpoint
        trainer = (
            self._start("trainer", endpoint, **options) if self.is_far else self._start_near(endpoint, **options)
        )
        trainer.until("attached")
        return trainer

    def attend(self) -> None:
        """Has a trainer that is attached and has asked for nothing yet."""
        self.trainer = self.new_trainer(hold_take=0)
        self.trainer.until("between")

    def follow_daemon(self) -> None:
        """Starts the daemon that comes after the present one."""
        self.daemon = self._start_daemon(**self._settings)

    def wake_daemon(self) -> None:
        """Has a daemon that was stopped go on."""
        self.daemon.process.send_signal(signal.SIGCONT)

    def outlast_leases(self) -> None:
        """Lets a fault last: its length is a fault's own, and no wait for anything."""
        time.sleep(FAULT_S)

    # To the end.

    def let_go(self) -> None:
        """Has everybody who stands still go on."""
        if self.point == "filling":
            self.orchestrator.go_on()
        if self.trainer is not None:
            self.trainer.go_on()

    def train(self) -> None:
        """Has `KEY` trained, by the trainer that is there or a new one; its bytes must be right."""
        is_taken = self.point in ("in_step", "finished") and self.trainer is not None
        if self.trainer is None:
            self.trainer = self.new_trainer(count=2 if self.point == "waiting" else 1)
        if not is_taken:
            assert self.trainer.until("took", key=KEY)["digest"] == self.digest
        if self.point != "finished" or not is_taken:
            self.trainer.until("consumed", key=KEY)
        if is_taken:
            self._until_heard()
            self.trainer.go_on()
        self.trainer.finish()

    def _until_heard(self) -> None:
        """Waits until the daemon has heard that `KEY` is trained; a new one knows nothing of it before."""
        deadline = time.monotonic() + EVENT_S
        while True:
            try:
                assert self.wait() == "consumed"
                return
            except RefusedError:
                assert time.monotonic() < deadline, f"the daemon never heard that {KEY} is trained"

    @property
    def digest(self) -> str:
        return digest(micro_batch(KEY, BYTES[self.point]))

    def ask(self, what: Callable[[StagingClient], Any]) -> Any:
        """Asks the daemon something."""

        async def with_client() -> Any:
            async with StagingClient(self.daemon.control_endpoint, retry_s=0.2, timeout_s=EVENT_S) as client:
                return await what(client)

        return asyncio.run(with_client())

    def wait(self, until: Any = "consumed") -> str:
        """Waits until `KEY` has come so far."""
        return str(self.ask(lambda client: client.wait(KEY, until=until, timeout_s=EVENT_S)))

    def assert_trained_once(self) -> None:
        """Nothing is held any more, nobody waits, and `KEY` is never trained again."""
        see(self.daemon, is_at_rest)
        again = self.offer("k", nbytes=BYTES[self.point])
        assert again.until("refused", key=KEY)["code"] == "consumed"
        again.finish()
        see(self.daemon, is_at_rest)

    def train_anew(self) -> None:
        """Sends `KEY` once more, as somebody who lost it would, and has it trained."""
        again = self.offer("k", nbytes=BYTES[self.point], until="consumed")
        trainer = self.new_trainer()
        assert trainer.until("took", key=KEY)["digest"] == self.digest
        trainer.finish()
        again.finish()
        self.assert_trained_once()


EVERY_POINT = pytest.mark.parametrize("point", POINTS)
