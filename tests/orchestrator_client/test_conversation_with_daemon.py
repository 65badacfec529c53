"""What the client makes of a daemon that answers late, twice, wrongly or not at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from pathlib import Path

import pytest

from forebay.orchestrator_client import Refusal, Staged, StagingClient
from forebay.orchestrator_client.server_kind import DAEMON
from forebay.orchestrator_client.server_link import ServerLink
from forebay.wire import (
    Abandon,
    BrokenError,
    ControlRequest,
    GetStatus,
    Goodbye,
    Hello,
    Offer,
    ProtocolError,
    RefusalCode,
    Refused,
    Reset,
    WaitTimeoutError,
    WasReset,
)

from .daemon_talk import SMALL, Answers, ignore, talk
from .fake_daemon import PATIENCE_S, FakeDaemon, grant, staged

# --- lost answers ---


def test_lost_answers_are_asked_for_again_with_the_same_attempt(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        if not isinstance(request, Offer):
            return None
        return [staged(request)] if len(daemon.of_kind(Offer)) > 5 else []

    with FakeDaemon(shm_dir, answer) as daemon:
        result = talk(daemon.endpoint, lambda client: client.stage(SMALL, key="k"))
        offers = daemon.of_kind(Offer)
    assert isinstance(result, Staged)
    assert (result.key, result.payload_bytes) == ("k", 400)
    assert len(offers) >= 6, "one more may be on its way when the answer comes"
    assert len({(offer.id, offer.attempt, offer.manifest) for offer in offers}) == 1


def test_two_calls_for_the_same_key_are_two_attempts(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        return [staged(request)] if isinstance(request, Offer) else None

    async def stage_twice(client: StagingClient) -> None:
        for _ in range(2):
            await client.stage(SMALL, key="k")

    with FakeDaemon(shm_dir, answer) as daemon:
        talk(daemon.endpoint, stage_twice)
        assert len({offer.attempt for offer in daemon.of_kind(Offer)}) == 2


def test_a_daemon_that_restarted_is_greeted_anew_and_the_offer_repeated(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        if not isinstance(request, Offer):
            return None
        if len(daemon.of_kind(Offer)) < 3:
            return [Refused(id=request.id, code=RefusalCode.HELLO_FIRST, words="who are you?")]
        return [staged(request)]

    with FakeDaemon(shm_dir, answer) as daemon:
        assert isinstance(talk(daemon.endpoint, lambda client: client.stage(SMALL, key="k")), Staged)
        kinds = [type(request).__name__ for request in daemon.requests]
        assert len({offer.attempt for offer in daemon.of_kind(Offer)}) == 1
    assert kinds == ["Hello", "Offer", "Hello", "Offer", "Hello", "Offer"]


def test_answers_to_nobody_and_garbage_are_passed_over(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        if not isinstance(request, Offer):
            return None
        refused = Refused(id=request.id + 1000, code=RefusalCode.DROPPED, words="another's")
        return [b"\xff garbage", b"", refused, Refused(code=RefusalCode.BAD_REQUEST, words=""), staged(request)]

    with FakeDaemon(shm_dir, answer) as daemon:
        assert isinstance(talk(daemon.endpoint, lambda client: client.stage(SMALL, key="k")), Staged)


def test_an_answer_of_another_kind_is_an_error(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        return None if isinstance(request, Hello) else [daemon.welcome(request)]

    with FakeDaemon(shm_dir, answer) as daemon:
        for what in (
            lambda client: client.stage(SMALL, key="k"),
            lambda client: client.wait("k"),
            lambda client: client.reset(),
            lambda client: client.status(),
        ):
            with pytest.raises(ProtocolError, match="got Welcome"):
                talk(daemon.endpoint, what)


# --- ends ---


def test_a_refused_offer_is_a_result_with_code_and_words(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        if isinstance(request, Offer):
            return [Refused(id=request.id, code=RefusalCode.NO_SLOT, words="slot 0 LENT 'a' for 9.0 s")]
        return None

    with FakeDaemon(shm_dir, answer) as daemon:
        result = talk(daemon.endpoint, lambda client: client.stage(SMALL, key="k"))
        assert daemon.of_kind(Abandon) == []
    assert result == Refusal("k", RefusalCode.NO_SLOT, "slot 0 LENT 'a' for 9.0 s")


def test_a_daemon_that_stops_ends_every_call(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        return [Goodbye(kept=False)] if isinstance(request, Reset) else None

    async def three(client: StagingClient) -> list[object]:
        calls: list[Awaitable[object]] = [client.stage(SMALL, key="k"), client.wait("l"), client.reset()]
        return await asyncio.gather(*calls, return_exceptions=True)

    with FakeDaemon(shm_dir, answer) as daemon:
        for error in talk(daemon.endpoint, three):
            assert isinstance(error, BrokenError)
            assert f"{daemon.endpoint} stopped" in str(error)


def test_a_daemon_that_keeps_its_pool_is_waited_for(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        if not isinstance(request, Offer):
            return None
        return [staged(request)] if len(daemon.of_kind(Offer)) == 2 else [Goodbye(kept=True)]

    with FakeDaemon(shm_dir, answer) as daemon:
        assert isinstance(talk(daemon.endpoint, lambda client: client.stage(SMALL, key="k")), Staged)
        assert len({offer.attempt for offer in daemon.of_kind(Offer)}) == 1


def test_a_call_that_gets_no_slot_in_time_says_so_and_abandons_its_attempt(shm_dir: Path) -> None:
    with FakeDaemon(shm_dir, ignore) as daemon:
        with pytest.raises(WaitTimeoutError) as caught:
            talk(daemon.endpoint, lambda client: client.stage(SMALL, key="k", queue="q", timeout_s=0.2))
        [abandon] = daemon.wait_for(Abandon)
        assert (abandon.key, abandon.queue) == ("k", "q")
        assert {abandon.attempt} == {offer.attempt for offer in daemon.of_kind(Offer)}
    for word in ("a slot for 'k'", daemon.endpoint, "forebay status"):
        assert word in str(caught.value)


def test_a_call_that_is_not_complete_in_time_says_how_far_it_came(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        return [grant(request, (0, 1), received_bytes=123)] if isinstance(request, Offer) else None

    with FakeDaemon(shm_dir, answer) as daemon:
        with pytest.raises(WaitTimeoutError, match=r"'k' to be complete in slot 0 .*123 of 400 bytes"):
            talk(daemon.endpoint, lambda client: client.stage(SMALL, key="k", timeout_s=1.0))
        assert len(daemon.wait_for(Abandon)) == 1


def test_a_cancelled_call_abandons_its_attempt(shm_dir: Path) -> None:
    async def cancel(client: StagingClient) -> None:
        task = asyncio.create_task(client.stage(SMALL, key="k"))
        await asyncio.to_thread(daemon.wait_for, Offer)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with FakeDaemon(shm_dir, ignore) as daemon:
        talk(daemon.endpoint, cancel)
        [abandon] = daemon.wait_for(Abandon)
        assert abandon.attempt == daemon.of_kind(Offer)[0].attempt


@pytest.mark.parametrize("turns", range(6))
def test_a_cancellation_that_comes_together_with_an_answer_is_not_lost(shm_dir: Path, turns: int) -> None:
    async def run() -> None:
        link = ServerLink(DAEMON, f"ipc://{shm_dir}/nobody", name="test", retry_s=PATIENCE_S)
        request = GetStatus(id=1)
        with link.exchange(request) as exchange:

            async def wait_for_ever() -> None:
                while True:
                    await exchange.next(time.monotonic() + PATIENCE_S, "the end")

            task = asyncio.create_task(wait_for_ever())
            await asyncio.sleep(0)
            exchange.replies.put_nowait(WasReset(dropped=0))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
            assert task.cancelled()
        await link.close()

    asyncio.run(run())
