"""What a client sends along with an offer, and what it does where the daemon asks for chunks all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from forebay.orchestrator_client import Staged, StagingClient, SteadyPace
from forebay.wire import (
    ControlReply,
    ControlRequest,
    Hello,
    MicroBatchState,
    Offer,
    Reached,
    RefusalCode,
    Refused,
    chunk_checksum,
)

from .fake_daemon import LIMITS, PATIENCE_S, FakeDaemon, grant, staged

MAX_EAGER_BYTES = 1000
SMALL = {"a": np.arange(10, dtype=np.int16), "b": np.zeros((3, 0)), "c": np.array(-0.0), "d": "static"}
BODY = np.arange(10, dtype=np.int16).tobytes().ljust(64, b"\0") + np.float64(-0.0).tobytes()


class Daemon(FakeDaemon):
    """Allows bodies of so many bytes, and grants the first offers that many spans; then all is staged."""

    def __init__(self, folder: Path, max_eager_bytes: int = MAX_EAGER_BYTES, *grants: int) -> None:
        self._limits = msgspec.structs.replace(LIMITS, max_eager_bytes=max_eager_bytes)
        self._grants = list(grants)
        super().__init__(folder, self._answer)

    def _answer(self, request: ControlRequest) -> Iterable[ControlReply] | None:
        match request:
            case Hello():
                return [self.welcome(request, limits=self._limits)]
            case Offer() if self._grants:
                return [grant(request, (0, self._grants.pop(0)))]
            case Offer():
                return [staged(request)]
            case _:
                return None


def stage(daemon: FakeDaemon, tree: Any, **options: Any) -> tuple[Offer, Staged]:
    """Stages a tree; returns the last offer for it, and what became of it."""

    async def run() -> Staged:
        options.setdefault("timeout_s", PATIENCE_S)
        async with StagingClient(daemon.endpoint, **options) as client:
            outcome = await client.stage(tree, key="k", timeout_s=PATIENCE_S)
            assert isinstance(outcome, Staged)
            return outcome

    outcome = asyncio.run(run())
    return daemon.of_kind(Offer)[-1], outcome


def wire_bytes(outcome: Staged) -> int:
    return sum(leaf.wire_bytes for leaf in outcome.leaves)


def test_a_small_micro_batch_comes_whole_with_its_offer(shm_dir: Path) -> None:
    with Daemon(shm_dir) as daemon:
        offer, outcome = stage(daemon, SMALL)
    assert offer.body == BODY
    assert offer.checksum == chunk_checksum(BODY, 0)
    assert (outcome.payload_bytes, wire_bytes(outcome), daemon.chunks) == (28, 0, [])


@pytest.mark.parametrize("nbytes", [1, MAX_EAGER_BYTES])
def test_one_array_up_to_the_limit_comes_with_its_offer(shm_dir: Path, nbytes: int) -> None:
    array = np.random.default_rng(1).integers(0, 256, nbytes, np.uint8)
    with Daemon(shm_dir) as daemon:
        offer, _ = stage(daemon, array)
    assert offer.body == array.tobytes()


@pytest.mark.parametrize(
    ("tree", "max_eager_bytes", "options"),
    [
        (np.zeros(MAX_EAGER_BYTES + 1, np.uint8), MAX_EAGER_BYTES, {}),
        ([np.zeros(1, np.uint8)] * 20, MAX_EAGER_BYTES, {}),
        (SMALL, 0, {}),
        (SMALL, MAX_EAGER_BYTES, {"pace": SteadyPace(1e9)}),
        ({"d": "static"}, MAX_EAGER_BYTES, {}),
    ],
    ids=["too large", "too large with its gaps", "none may", "paced", "without bytes"],
)
def test_other_offers_come_without_a_body(
    shm_dir: Path, tree: Any, max_eager_bytes: int, options: dict[str, Any]
) -> None:
    with Daemon(shm_dir, max_eager_bytes) as daemon:
        offer, _ = stage(daemon, tree, **options)
    assert offer.body == b""


def test_where_the_daemon_grants_a_slot_instead_chunks_are_sent(shm_dir: Path) -> None:
    with Daemon(shm_dir, MAX_EAGER_BYTES, 1) as daemon:
        # The grant is answered with chunks; the repeat of the offer hears that all is staged.
        offer, outcome = stage(daemon, SMALL, retry_s=0.5)
        [header] = daemon.wait_for_chunks(1)
    assert (header.offset, header.length, header.checksum) == (0, len(BODY), chunk_checksum(BODY, 0))
    assert wire_bytes(outcome) == outcome.payload_bytes
    assert offer.body == BODY


def test_a_body_is_repeated_until_the_daemon_has_it_and_again_to_the_next_daemon(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Iterable[ControlReply] | None:
        number = len(daemon.of_kind(Offer))
        match request:
            case Hello():
                welcome = daemon.welcome(request, limits=msgspec.structs.replace(LIMITS, max_eager_bytes=1000))
                return [msgspec.structs.replace(welcome, epoch="first" if number < 5 else "second")]
            case Offer() if number in (1, 4):
                return []
            case Offer() if number in (2, 3):
                return [Reached(id=request.id, state=MicroBatchState.OFFERED)]
            case Offer() if number == 5:
                return [Refused(id=request.id, code=RefusalCode.HELLO_FIRST, words="who are you?")]
            case Offer():
                return [staged(request)]
            case _:
                return None

    with FakeDaemon(shm_dir, answer) as daemon:
        stage(daemon, SMALL, retry_s=0.3)
        offers = daemon.of_kind(Offer)
    assert [bool(offer.body) for offer in offers[:2]] == [True, True], "the first may have been lost"
    assert [offer.body for offer in offers[3:5]] == [b"", b""]
    assert offers[5].body == BODY, "another daemon knows nothing of it"
    assert len({(offer.attempt, offer.manifest, offer.checksum) for offer in offers}) == 1
