"""How a worker ends: what runs is answered, what waits is refused, and nothing is left."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from forebay import BrokenError, ClosedError, Queued, TrainerHandle, TrainerWorker
from forebay.wire import RefusalCode, RefusedError

from ..trainer.gate import Gate
from .processes import EVENT_S
from .served import Engine, Served, handle_to, payload, see, states, talk


def test_a_worker_that_stops_answers_what_runs_and_refuses_what_waits(shm_dir: Path) -> None:
    gate = Gate("the step")

    async def run(handle: TrainerHandle) -> None:
        running = asyncio.create_task(handle.train_step(payload(1)))
        await gate.reached()
        waiting = asyncio.create_task(handle.train_step(payload(2)))
        expected = ["fwd_bwd queued", "fwd_bwd running"]
        await see(handle, lambda status: sorted(states(status)) == expected, "a step that waits")
        served.worker.stop()
        with pytest.raises(RefusedError, match="shutting down") as caught:
            await waiting
        assert caught.value.code == RefusalCode.DRAINING
        assert (await handle.status()).draining
        with pytest.raises(RefusedError, match="shutting down"):
            await handle.update()
        gate.open()
        assert (await running).value["number"] == 1

    with Served(shm_dir, Engine(inside=lambda _: gate())) as served:
        talk(served.endpoint, run)
        served.thread.join(EVENT_S)
        assert not served.thread.is_alive(), "it serves on though nothing runs"
    assert served.engine.trained == [1]


def test_a_worker_that_has_nothing_to_do_stops_at_once(shm_dir: Path) -> None:
    with Served(shm_dir) as served:
        served.stop()
        served.stop()
        assert served.engine.trained == []


def test_a_worker_that_was_stopped_before_it_served_does_not_serve(shm_dir: Path) -> None:
    served = Served(shm_dir)
    served.worker.stop()
    with served:
        served.thread.join(EVENT_S)
        assert not served.thread.is_alive()


def test_the_drain_has_an_end_and_who_still_waits_hears_a_goodbye(shm_dir: Path) -> None:
    gate = Gate("the step")

    async def run(handle: TrainerHandle) -> None:
        task = asyncio.create_task(handle.train_step(payload(1)))
        await gate.reached()
        await asyncio.to_thread(served.stop)
        served.worker.close()
        with pytest.raises(
            BrokenError, match=r"the trainer worker at .* stopped; still awaited: the answer to fwd_b"
        ):
            await task
        gate.open()

    with Served(shm_dir, Engine(inside=lambda _: gate()), worker_drain_s=0.0) as served:
        talk(served.endpoint, run, retry_s=EVENT_S)


def test_a_goodbye_ends_every_wait_at_once(shm_dir: Path) -> None:
    gate = Gate("the methods")

    async def run(first: TrainerHandle) -> None:
        async with handle_to(served.endpoint, retry_s=EVENT_S) as second:
            tasks = [asyncio.create_task(handle.call("hold")) for handle in (first, second)]
            await gate.reached()
            await see(first, lambda status: len(status.calls) == 2, "two calls")
            await asyncio.to_thread(served.stop)
            served.worker.close()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(end) for end in ends} == {BrokenError, RefusedError}
        gate.open()

    with Served(shm_dir, methods={"hold": gate}, worker_drain_s=0.0) as served:
        talk(served.endpoint, run, retry_s=EVENT_S)


def test_closing_twice_is_as_good_as_once_and_nothing_is_left(shm_dir: Path) -> None:
    before = set(threading.enumerate())
    with Served(shm_dir) as served:
        talk(served.endpoint, lambda handle: handle.update())
        assert {path.name for path in shm_dir.iterdir()} == {
            "worker.sock",
            "worker.sock.lock",
            "worker_data.sock",
            "worker_data.sock.lock",
        }
        served.stop()
        for _ in range(3):
            served.worker.close()
        served.worker.stop()
        with pytest.raises(ClosedError, match="the worker is closed; make another one"):
            served.worker.serve()
    assert list(shm_dir.iterdir()) == []
    for thread in set(threading.enumerate()) - before:
        # The client's last thread has said that it is done, and may be on its way out.
        thread.join(EVENT_S)
        assert not thread.is_alive(), thread


def test_a_worker_is_a_context_manager_that_closes_itself(shm_dir: Path) -> None:
    served = Served(shm_dir)
    with pytest.raises(RuntimeError, match="in the block"), served.worker:
        raise RuntimeError("in the block")
    assert list(shm_dir.iterdir()) == []
    served.staged.close()


def test_after_a_worker_another_one_may_serve_the_same_engine(shm_dir: Path) -> None:
    with Served(shm_dir) as served:
        talk(served.endpoint, lambda handle: handle.train_step(payload(1), "k"))
        served.stop()
        served.worker.close()
        with TrainerWorker(served.staged) as second:
            thread = threading.Thread(target=second.serve)
            thread.start()
            talk(second.endpoint, lambda handle: handle.train_step(payload(2)))
            second.stop()
            thread.join(EVENT_S)
    assert served.engine.trained == [1, 2]


def test_calls_of_one_run_are_refused_by_the_next_and_those_after_them_are_for_that(shm_dir: Path) -> None:
    async def run(handle: TrainerHandle) -> None:
        await handle.update()
        await asyncio.to_thread(first.stop)
        # As if it had been killed: without a goodbye.
        first.worker._sockets._peers.clear()
        first.worker.close()
        with Served(shm_dir) as second:
            with pytest.raises(BrokenError, match="was restarted; whether update had run is not known"):
                await handle.update()
            assert await handle.update() == {"updates": 1}
            assert second.counters["refused_other_run"] >= 1

    with Served(shm_dir) as first:
        talk(first.endpoint, run)


def test_an_engine_and_its_queue_stay_their_owners(shm_dir: Path) -> None:
    with Served(shm_dir) as served:
        served.stop()
        served.worker.close()
        assert isinstance(served.staged.stage_batch(payload(1), key="k"), Queued)
        assert served.staged.fwd_bwd(stage_key="k")["number"] == 1
