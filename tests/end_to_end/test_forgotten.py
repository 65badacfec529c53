"""A client that said nothing while more others came than a daemon knows at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import zmq

from forebay import LocalDaemon, Staged, StagingClient
from forebay.shm import this_peer
from forebay.wire import (
    PROTOCOL_VERSION,
    Hello,
    MicroBatchGoneError,
    Welcome,
    decode_control_reply,
    encode_message,
)

from .processes import EVENT_S, StartDaemon

KNOWN_PEERS = 4096
AT_ONCE = 100


def greet(daemon: LocalDaemon, count: int) -> None:
    """Has that many others say hello and leave."""
    hello = encode_message(Hello(id=1, version=PROTOCOL_VERSION, peer=this_peer("another")))
    present: deque[zmq.Socket[bytes]] = deque()
    with zmq.Context() as context:
        for number in range(count):
            socket = context.socket(zmq.DEALER)
            socket.linger = 0
            socket.rcvtimeo = int(EVENT_S * 1000)
            socket.connect(daemon.control_endpoint)
            socket.send(hello)
            present.append(socket)
            if len(present) == AT_ONCE or number == count - 1:
                while present:
                    with present.popleft() as heard:
                        assert isinstance(decode_control_reply(heard.recv()), Welcome)


@pytest.mark.slow
def test_a_client_that_was_forgotten_says_hello_by_itself_and_goes_on(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()

    async def run() -> None:
        async with StagingClient(daemon.control_endpoint, retry_s=EVENT_S) as silent:
            assert isinstance(await silent.stage({"x": np.arange(9)}, key="before"), Staged)
            requests: tuple[Callable[[], Awaitable[Any]], ...] = (
                lambda: silent.stage({"x": np.arange(9)}, key="small"),
                lambda: silent.stage({"x": np.arange(1_000_000)}, key="large"),
                lambda: silent.wait("before", until="ready"),
                lambda: silent.advance(1),
                lambda: silent.status(),
                lambda: silent.reset(),
            )
            for request in requests:
                await asyncio.to_thread(greet, daemon, KNOWN_PEERS)
                welcome = silent._link.welcome
                await request()
                assert silent._link.welcome is not welcome, "it was not forgotten"

    asyncio.run(run())


@pytest.mark.slow
def test_a_client_that_was_forgotten_while_it_waits_hears_what_it_waits_for(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()

    async def run() -> None:
        async with StagingClient(daemon.control_endpoint, retry_s=0.2) as waits:
            assert isinstance(await waits.stage({"x": np.arange(9)}, key="k"), Staged)
            waiting = asyncio.create_task(waits.wait("k", timeout_s=EVENT_S))
            await asyncio.to_thread(greet, daemon, KNOWN_PEERS)
            async with StagingClient(daemon.control_endpoint) as other:
                await other.reset()
            with pytest.raises(MicroBatchGoneError, match="'k' is dropped: the queue was reset"):
                await waiting

    asyncio.run(run())
