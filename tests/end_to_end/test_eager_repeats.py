"""Small micro-batches that wait for a slot of a real daemon for longer than a client's patience."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from forebay import Staged, StagingClient
from forebay.orchestrator_client.offering import Offering
from forebay.wire import Offer

from .processes import EVENT_S, StartDaemon


def test_what_came_with_an_offer_is_staged_though_its_repeats_come_without(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(slots=1)
    said: list[int] = []
    is_bodiless = asyncio.Event()
    renewed = Offering._renewed

    def renew(self: Offering) -> Offer:
        offer = renewed(self)
        said.append(len(offer.body))
        if not offer.body:
            is_bodiless.set()
        return offer

    monkeypatch.setattr(Offering, "_renewed", renew)

    async def run() -> None:
        async with StagingClient(daemon.control_endpoint, retry_s=0.1) as client:
            assert isinstance(await client.stage(np.arange(9), key="first", queue="other"), Staged)
            second = asyncio.create_task(client.stage(np.arange(1000), key="second", wait_s=EVENT_S))
            await asyncio.wait_for(is_bodiless.wait(), EVENT_S)
            await client.reset(queue="other")
            outcome = await second
            assert isinstance(outcome, Staged)
            assert [leaf.wire_bytes for leaf in outcome.leaves] == [0], "its chunks were asked for"
            assert [queue.ready for queue in (await client.status()).queues] == [("second",)]

    asyncio.run(run())
    assert 8000 in said
