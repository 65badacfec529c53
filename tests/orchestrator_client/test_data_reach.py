"""A data endpoint that a client cannot reach, or where nothing arrives: said, and in time."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from forebay import Staged, StagingClient, SteadyPace
from forebay.wire import Abandon, BrokenError, ControlReply, ControlRequest, Hello, Offer

from ..sockets.full_endpoint import full_endpoint
from .fake_daemon import LIMITS, FakeDaemon, grant, staged
from .hanging_up import hanging_up

RETRY_S, SILENCE_S = 0.05, 0.5
MANY = 60
"""Answers that take six times as long as nothing may arrive."""
TREE = {"x": np.zeros(20 * LIMITS.chunk_bytes, np.uint8)}
SPANS = (0, 20)
LARGE, ITS_SPANS = {"x": np.zeros(32 << 20, np.uint8)}, (0, (32 << 20) // LIMITS.chunk_bytes)
"""More than the kernel takes of what nobody reads."""
Answers = Iterable[ControlReply | bytes] | None


def talk(endpoint: str, what: Callable[[StagingClient], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        async with StagingClient(endpoint, retry_s=RETRY_S, silence_s=SILENCE_S, **options) as client:
            return await what(client)

    return asyncio.run(run())


def stage(key: str = "k") -> Callable[[StagingClient], Awaitable[Any]]:
    return lambda client: client.stage(TREE, key=key)


def words_of_end(folder: Path, address: str = "") -> str:
    """Stages with a daemon that says that its data endpoint is somewhere else; returns how that ended."""

    def answer(request: ControlRequest) -> Answers:
        if isinstance(request, Hello) and address:
            return [msgspec.structs.replace(daemon.welcome(request), data_endpoint=address)]
        return [grant(request, SPANS)] if isinstance(request, Offer) else None

    with FakeDaemon(folder, answer) as daemon:
        with pytest.raises(BrokenError) as caught:
            talk(daemon.endpoint, stage())
        assert len(daemon.wait_for(Abandon)) == 1, "its slot is free at once"
    words = str(caught.value)
    where = address or "ipc://"
    assert words.startswith(f"nothing that is sent to data_endpoint {where}")
    assert re.search(r" of the daemon has arrived for [\d.]+ s \(0 of 81920 bytes had before\)", words)
    return words


def test_a_data_endpoint_that_refuses_connections_is_named_with_reason_and_remedy(shm_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    words = words_of_end(shm_dir, address)
    assert words.endswith(
        ": nobody listens there; set data_endpoint (FOREBAY_DATA_ENDPOINT) of the daemon to an address that this"
        " client reaches"
    )


def test_a_data_endpoint_that_swallows_packets_is_told_from_one_that_refuses_them(shm_dir: Path) -> None:
    with full_endpoint("tcp://127.0.0.1:*") as endpoint:
        words = words_of_end(shm_dir, endpoint.address)
    assert "): packets to it are not answered, or it takes no more connections now (max_connections); see" in words
    assert "FOREBAY_DATA_ENDPOINT" in words


def test_a_socket_that_is_not_seen_from_here_is_told(shm_dir: Path) -> None:
    words = words_of_end(shm_dir, f"ipc://{shm_dir}/elsewhere")
    assert f"): there is no {shm_dir}/elsewhere here; if one runs, it is seen from elsewhere" in words


def test_a_data_endpoint_that_hangs_up_in_the_handshake_is_told(shm_dir: Path) -> None:
    with hanging_up() as address:
        words = words_of_end(shm_dir, address)
    assert words.endswith(
        ": its handshakes fail; the server hung up in the handshake: this is not its data endpoint"
    )


def test_a_data_endpoint_that_says_nothing_is_told(shm_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = words_of_end(shm_dir, f"tcp://127.0.0.1:{server.getsockname()[1]}")
    assert "): whoever listens there takes the connection, and says nothing; see whether what listens" in words


def test_a_daemon_that_takes_what_is_sent_and_counts_none_of_it_is_not_waited_for_for_ever(shm_dir: Path) -> None:
    words = words_of_end(shm_dir)
    assert "bytes had before); see what the daemon does with: forebay status; or set data_endpoint" in words


def test_after_that_the_next_call_dials_anew(shm_dir: Path) -> None:
    is_mended = threading.Event()

    def answer(request: ControlRequest) -> Answers:
        if isinstance(request, Offer):
            return [staged(request) if is_mended.is_set() and daemon.chunks else grant(request, SPANS)]
        return None

    async def twice(client: StagingClient) -> Any:
        with pytest.raises(BrokenError, match="has arrived for"):
            await client.stage(TREE, key="a")
        before = client._wire._sender
        is_mended.set()
        daemon.chunks.clear()
        done = await client.stage(TREE, key="b")
        assert client._wire._sender is not before
        return done

    with FakeDaemon(shm_dir, answer) as daemon:
        assert isinstance(talk(daemon.endpoint, twice), Staged)


def staged_after_many(
    received: Callable[[int], int] = lambda _: 0, spans: tuple[int, int] = SPANS
) -> Callable[[Offer, int], ControlReply]:
    """Grants an offer and its repeats, with what has arrived by each of them, until there were many."""

    def answer(offer: Offer, count: int) -> ControlReply:
        return staged(offer) if count > MANY else grant(offer, spans, received_bytes=received(count))

    return answer


def test_a_link_on_which_something_arrives_now_and_then_is_waited_for(shm_dir: Path) -> None:
    answer_to = staged_after_many(lambda count: count // 4)

    def answer(request: ControlRequest) -> Answers:
        return [answer_to(request, len(daemon.of_kind(Offer)))] if isinstance(request, Offer) else None

    with FakeDaemon(shm_dir, answer) as daemon:
        assert isinstance(talk(daemon.endpoint, stage()), Staged)


def test_what_its_own_rate_keeps_back_is_waited_for(shm_dir: Path) -> None:
    answer_to = staged_after_many()

    def answer(request: ControlRequest) -> Answers:
        return [answer_to(request, len(daemon.of_kind(Offer)))] if isinstance(request, Offer) else None

    with FakeDaemon(shm_dir, answer) as daemon:
        # A chunk, at this rate, for each minute or so.
        pace = SteadyPace(bytes_per_s=64)
        assert isinstance(talk(daemon.endpoint, stage(), pace=pace), Staged)


def test_what_waits_for_its_turn_on_the_wire_is_waited_for(shm_dir: Path) -> None:
    goes_on, waits = staged_after_many(lambda count: count, ITS_SPANS), staged_after_many()

    def answer(request: ControlRequest) -> Answers:
        if not isinstance(request, Offer):
            return None
        count = sum(offer.key == request.key for offer in daemon.of_kind(Offer))
        return [(goes_on if request.key == "first" else waits)(request, count)]

    async def both(client: StagingClient) -> Any:
        first = asyncio.create_task(client.stage(LARGE, key="first"))
        while not (client._wire.turn.locked() or first.done()):
            await asyncio.sleep(0)
        return await asyncio.gather(first, client.stage(TREE, key="second"))

    with FakeDaemon(shm_dir, answer, reads_data=False) as daemon:
        done = talk(daemon.endpoint, both)
    assert [type(each) for each in done] == [Staged, Staged]
