"""Inline payloads: bit for bit what was sent, in memory that is free again whatever becomes of their senders."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from forebay import ClosedError, SteadyPace, TrainerHandle
from forebay.orchestrator_client.data_endpoint import Target
from forebay.orchestrator_client.worker_calls import WorkerCalls
from forebay.wire import BrokenError, RefusalCode, RefusedError, TreeError

from ..trainer.gate import Gate
from ..wire.trees import REGISTRY, assert_same, trees
from .processes import EVENT_S
from .served import Engine, Served, handle_to, payload, see, talk

MIB = 1 << 20
SLOW = 4 * MIB
"""Bytes a second at which a payload of a GiB is under way for longer than any test."""


def huge() -> dict[str, Any]:
    """Makes a payload that takes its memory only where it is read."""
    return {"x": np.zeros(1 << 30, np.uint8)}


class Keeping:
    """A method that keeps what it was given."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def __call__(self, tree: Any) -> None:
        self.got.append(tree)


# --- bit for bit ---


def test_any_tree_arrives_bit_for_bit(shm_dir: Path) -> None:
    keeping = Keeping()
    with Served(shm_dir, registry=REGISTRY, methods={"keep": keeping}) as served, asyncio.Runner() as runner:
        handle = handle_to(served.endpoint, registry=REGISTRY)
        runner.run(handle.__aenter__())

        @given(tree=trees)
        @settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
        def arrives(tree: Any) -> None:
            runner.run(handle.call("keep", [tree]))
            assert_same(keeping.got.pop(), [tree])

        try:
            arrives()
        finally:
            runner.run(handle.close())


def test_several_megabytes_arrive_in_many_chunks(shm_dir: Path) -> None:
    rng, keeping = np.random.default_rng(3), Keeping()
    tree = {
        "wide": rng.integers(0, 255, (3, 5 * MIB // 2), np.uint8),
        "many": [rng.random(100, np.float32) for _ in range(200)],
        "strided": rng.integers(0, 9, (2000, 600), np.int32)[::2, ::3],
        "fortran": np.asfortranarray(rng.random((300, 400))),
        "swapped": rng.integers(0, 9, 1000, np.int64).astype(">i8"),
        "static": ("text", 7, None),
    }
    with Served(shm_dir, methods={"keep": keeping}) as served:
        talk(served.endpoint, lambda handle: handle.call("keep", tree))
    assert_same(keeping.got[0], tree)
    for leaf in (keeping.got[0]["wide"], *keeping.got[0]["many"]):
        assert leaf.ctypes.data % 64 == 0


def test_what_a_method_keeps_is_never_written_over(shm_dir: Path) -> None:
    keeping = Keeping()

    async def run(handle: TrainerHandle) -> None:
        for number in range(8):
            await handle.call("keep", payload(number))

    with Served(shm_dir, methods={"keep": keeping}) as served:
        talk(served.endpoint, run)
    assert [int(tree["x"].min()) for tree in keeping.got] == list(range(8))
    assert [int(tree["x"].max()) for tree in keeping.got] == list(range(8))


def test_payloads_of_many_calls_at_once_do_not_mix(shm_dir: Path) -> None:
    def check(tree: Any) -> tuple[int, bool]:
        return int(tree["x"].flat[0]), bool((tree["x"] == tree["x"].flat[0]).all())

    async def run(handle: TrainerHandle) -> list[Any]:
        async with handle_to(handle._link.endpoint) as other:
            handles = [handle, other] * 4
            return await asyncio.gather(
                *(each.call("check", payload(number, rows=20_000)) for number, each in enumerate(handles))
            )

    with Served(shm_dir, methods={"check": check}) as served:
        assert talk(served.endpoint, run) == [(number, True) for number in range(8)]
        assert served.memory == 0


# --- on_sent ---


def test_on_sent_is_called_once_when_all_has_arrived_and_the_payload_is_let_go(shm_dir: Path) -> None:
    gate, sent = Gate("the step"), asyncio.Event()
    calls: list[str] = []

    def on_sent() -> None:
        calls.append("sent")
        sent.set()

    async def run(handle: TrainerHandle) -> None:
        tree = payload(1, rows=20_000)
        array = weakref.ref(tree["x"])
        task = asyncio.create_task(handle.train_step(tree, on_sent=on_sent))
        del tree
        await asyncio.wait_for(sent.wait(), EVENT_S)
        gc.collect()
        assert array() is None, "nobody needs it any more"
        assert not task.done()
        for _ in range(3):
            await handle.status()
        gate.open()
        await task
        assert calls == ["sent"]

    with Served(shm_dir, Engine(inside=lambda _: gate())) as served:
        talk(served.endpoint, run)


def test_on_sent_comes_before_the_end_also_of_a_step_that_waits(shm_dir: Path) -> None:
    gate, order = Gate("the step"), []

    async def run(handle: TrainerHandle) -> None:
        first = asyncio.create_task(handle.train_step(payload(1)))
        await gate.reached()
        second = asyncio.create_task(handle.train_step(payload(2), on_sent=lambda: order.append("sent")))
        second.add_done_callback(lambda _: order.append("done"))
        async with asyncio.timeout(EVENT_S):
            while not order:
                await handle.status()
        gate.open()
        await asyncio.gather(first, second)

    with Served(shm_dir, Engine(inside=lambda _: gate())) as served:
        talk(served.endpoint, run)
    assert order == ["sent", "done"]


@pytest.mark.parametrize("tree", [{"n": 1}, {"x": np.zeros((0, 4), np.float32)}])
def test_a_payload_without_bytes_is_sent_as_well(shm_dir: Path, tree: Any) -> None:
    sent: list[str] = []

    async def run(handle: TrainerHandle) -> Any:
        return await handle.train_step(tree, on_sent=lambda: sent.append("sent"))

    class Small(Engine):
        def fwd_bwd(self, batch: Any, scale: float = 1.0) -> Any:  # noqa: ARG002
            return sorted(batch)

    with Served(shm_dir, Small()) as served:
        assert talk(served.endpoint, run).value == sorted(tree)
    assert sent == ["sent"]


def test_without_a_payload_nothing_is_sent(shm_dir: Path) -> None:
    sent: list[str] = []

    async def run(handle: TrainerHandle) -> None:
        await handle.stage_batch(payload(1), key="k")
        await handle.train_step(stage_key="k", on_sent=lambda: sent.append("sent"))

    with Served(shm_dir) as served:
        talk(served.endpoint, run)
    assert sent == []


# --- memory ---


def test_payloads_over_the_bound_are_refused_until_there_is_room(shm_dir: Path) -> None:
    gate = Gate("the step")

    async def run(handle: TrainerHandle) -> None:
        first = asyncio.create_task(handle.train_step(payload(1, rows=20_000)))
        await gate.reached()
        with pytest.raises(RefusedError) as caught:
            await handle.train_step(payload(2, rows=20_000))
        assert caught.value.code == RefusalCode.INLINE_FULL
        gate.open()
        await first
        assert (await handle.train_step(payload(2, rows=20_000))).value["number"] == 2

    with Served(shm_dir, Engine(inside=lambda _: gate()), inline_total_bytes=5_000_000) as served:
        talk(served.endpoint, run)
    assert served.engine.trained == [1, 2]


def test_a_payload_that_does_not_reach_the_workers_data_endpoint_says_so_and_never_runs(
    shm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(f"ipc://{shm_dir}/elsewhere")
    monkeypatch.setattr(WorkerCalls, "data_target", lambda _: target)
    with Served(shm_dir) as served:

        async def run(handle: TrainerHandle) -> None:
            words = rf"worker_data_endpoint {target.endpoint} of the trainer worker has arrived .*there is no "
            with pytest.raises(BrokenError, match=words):
                await handle.train_step(payload(1))
            await see(handle, lambda status: not status.calls, "the call was taken back")

        talk(served.endpoint, run, silence_s=0.5)
        assert not served.memory
    assert served.engine.trained == []


def test_a_payload_that_is_larger_than_one_may_be_is_not_sent(shm_dir: Path) -> None:
    async def run(handle: TrainerHandle) -> None:
        with pytest.raises(TreeError, match=r"\['x'\]"):
            await handle.train_step(payload(1, rows=20_000))
        assert (await handle.status()).counters == {}

    with Served(shm_dir, inline_max_bytes=1_000_000) as served:
        talk(served.endpoint, run)


def test_a_caller_that_gives_up_in_the_middle_of_a_payload_frees_its_memory(shm_dir: Path) -> None:
    async def run(handle: TrainerHandle) -> None:
        task = asyncio.create_task(handle.train_step(huge()))
        await see(handle, lambda status: any(call.received_bytes for call in status.calls), "bytes that arrive")
        assert served.memory == 1 << 30
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await see(handle, lambda status: not status.calls, "the end of the call")
        assert served.memory == 0
        assert (await handle.train_step(payload(1))).value["number"] == 1

    with Served(shm_dir) as served:
        talk(served.endpoint, run, pace=SteadyPace(SLOW))


def test_a_handle_that_is_closed_in_the_middle_of_a_payload_ends_its_calls(shm_dir: Path) -> None:
    async def run() -> None:
        handle = handle_to(served.endpoint, pace=SteadyPace(SLOW))
        async with handle:
            tasks = [asyncio.create_task(handle.train_step(huge())) for _ in range(2)]
            await see(
                handle, lambda status: any(call.received_bytes for call in status.calls), "bytes that arrive"
            )
        ends = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), EVENT_S)
        assert [type(end) for end in ends] == [ClosedError, ClosedError]
        async with handle_to(served.endpoint) as other:
            await see(other, lambda status: not status.calls, "the end of both calls")
        assert served.memory == 0
        assert "receive_expired" not in served.counters, "the worker was told"

    with Served(shm_dir) as served:
        asyncio.run(run())


def test_a_caller_that_is_killed_in_the_middle_of_a_payload_frees_its_memory(shm_dir: Path) -> None:
    script = Path(__file__).with_name("half_sender.py")

    async def run(handle: TrainerHandle) -> None:
        with subprocess.Popen([sys.executable, str(script), served.endpoint]) as sender:
            try:
                await see(handle, lambda status: any(call.received_bytes for call in status.calls), "bytes")
                assert served.memory == 1 << 30
            finally:
                sender.kill()
        await see(handle, lambda status: not status.calls, "the end of the call")
        assert served.memory == 0
        assert served.counters["receive_expired"] == 1
        assert (await handle.train_step(payload(1))).value["number"] == 1

    with Served(shm_dir, inline_lease_s=0.5) as served:
        talk(served.endpoint, run)
