"""A real daemon's metrics, beside what was really staged, trained and refused."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import forebay
from forebay import LocalDaemon, Staged, StagingClient
from forebay.daemon.http_address import http_address

from .http_looks import look
from .processes import EVENT_S, StartDaemon, StartParty

ANY = "127.0.0.1:0"
Series = tuple[str, tuple[tuple[str, str], ...]]


class Metrics:
    """One look at all metrics."""

    def __init__(self, daemon: LocalDaemon) -> None:
        seen = look(daemon, "/metrics")
        assert seen.status == 200
        self._values: dict[Series, float] = {}
        for family in text_string_to_metric_families(seen.body):
            for sample in family.samples:
                self._values[sample.name, tuple(sorted(sample.labels.items()))] = sample.value

    def __call__(self, name: str, **labels: str) -> float:
        return self._values[name, tuple(sorted(labels.items()))]

    def sum_of(self, name: str) -> float:
        return sum(value for (found, _), value in self._values.items() if found == name)


def metrics_when(daemon: LocalDaemon, condition: Callable[[Metrics], bool]) -> Metrics:
    """Looks until a condition holds."""
    deadline = time.monotonic() + EVENT_S
    while not condition(seen := Metrics(daemon)):
        assert time.monotonic() < deadline, "never seen"
    return seen


def stage(daemon: LocalDaemon, trees: dict[str, Any], **options: Any) -> list[Staged]:
    async def run() -> list[Staged]:
        async with StagingClient(daemon.control_endpoint, **options) as client:
            results = [await client.stage(tree, key=key, timeout_s=EVENT_S) for key, tree in trees.items()]
        assert all(isinstance(result, Staged) for result in results), results
        return [result for result in results if isinstance(result, Staged)]

    return asyncio.run(run())


def ids(seed: int) -> Any:
    """Three MiB that can be compressed."""
    return {"ids": np.random.default_rng(seed).integers(0, 300, (3, 512 << 10), np.int16)}


def test_metrics_agree_with_what_was_staged_and_trained(start_daemon: StartDaemon, start: StartParty) -> None:
    daemon = start_daemon(http_endpoint=ANY, slots=4)
    start("orchestrator", daemon.control_endpoint, count=3, nbytes=3_000_000).finish()
    before = Metrics(daemon)
    assert before("forebay_micro_batches_published_total") == 3
    assert before("forebay_queue_ready", queue="train") == 3
    assert (before("forebay_slots", state="READY"), before("forebay_slots", state="FREE")) == (3, 1)
    payload_bytes = before("forebay_published_bytes_total")
    assert payload_bytes >= 9_000_000
    assert before("forebay_micro_batch_bytes_count") == before("forebay_stage_seconds_count") == 3
    assert before("forebay_micro_batch_bytes_sum") == payload_bytes
    assert before.sum_of("forebay_received_bytes_total") >= payload_bytes
    start("trainer", daemon.trainer_endpoint, count=3).finish()
    after = metrics_when(daemon, lambda seen: seen("forebay_micro_batches_consumed_total") == 3)
    for histogram in ("queue", "lent", "on_device"):
        assert after(f"forebay_{histogram}_seconds_count") == 3
    assert after("forebay_slots", state="FREE") == 4
    assert after.sum_of("forebay_refusals_total") == after.sum_of("forebay_chunk_faults_total") == 0
    assert after.sum_of("forebay_micro_batches_dropped_total") == 0
    assert after("forebay_slot_bytes") >= payload_bytes
    assert 0 < after("forebay_private_memory_bytes") < after("forebay_private_memory_limit_bytes")
    assert abs(after("forebay_start_time_seconds") - time.time()) < 3600
    assert after("forebay_loop_answered") == 1


@pytest.mark.parametrize("codec", ["raw", "bitshuffle-lz4"])
def test_bytes_are_counted_by_codec_as_sent_and_as_they_lie_there(start_daemon: StartDaemon, codec: str) -> None:
    daemon = start_daemon(http_endpoint=ANY)
    [staged] = stage(daemon, {"k": ids(1)}, codec=codec)
    seen = Metrics(daemon)
    assert seen("forebay_received_bytes_total", codec=codec) == staged.payload_bytes
    assert seen("forebay_received_wire_bytes_total", codec=codec) == sum(leaf.wire_bytes for leaf in staged.leaves)
    assert seen.sum_of("forebay_received_bytes_total") == staged.payload_bytes
    assert seen.sum_of("forebay_received_chunks_total") == 3


def test_what_comes_with_its_offer_is_counted_there(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(http_endpoint=ANY)
    [staged] = stage(daemon, {"k": {"x": np.arange(1024)}})
    seen = Metrics(daemon)
    assert seen("forebay_offer_body_bytes_total") == staged.payload_bytes == 8192
    assert seen.sum_of("forebay_received_chunks_total") == 0


def test_a_trainer_that_waits_is_seen_while_it_does_and_measured_afterwards(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(http_endpoint=ANY)
    with (
        forebay.attach(endpoint=daemon.trainer_endpoint, timeout_s=EVENT_S) as queue,
        ThreadPoolExecutor(1) as pool,
    ):
        taken = pool.submit(queue.take, timeout_s=EVENT_S)
        seen = metrics_when(daemon, lambda seen: seen.sum_of("forebay_queue_trainer_waiting_seconds") > 0)
        assert seen("forebay_queue_trainer_attached", queue="train") == 1
        assert seen("forebay_trainer_wait_seconds_count") == 0
        stage(daemon, {"k": {"x": np.arange(1024, dtype=np.int32)}})
        taken.result(EVENT_S).close()
    seen = Metrics(daemon)
    assert seen("forebay_trainer_wait_seconds_count") >= 1
    assert seen("forebay_trainer_wait_seconds_sum") > 0


def test_refusals_and_rubbish_are_counted_by_kind(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(http_endpoint=ANY)

    async def ask() -> None:
        async with StagingClient(daemon.control_endpoint) as client:
            with pytest.raises(forebay.wire.RefusedError):
                await client.wait("nobody staged this", timeout_s=EVENT_S)

    asyncio.run(ask())
    seen = Metrics(daemon)
    assert seen("forebay_refusals_total", code="unknown_key") == 1
    assert seen.sum_of("forebay_refusals_total") - seen("forebay_refusals_total", code="hello_first") == 1


def test_many_looks_at_once_and_hostile_bytes_hold_up_nobody(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(http_endpoint=ANY)
    where = http_address(daemon.ready.http_endpoint)
    statuses: list[int] = []

    def look_often() -> None:
        statuses.extend(look(daemon, "/metrics").status for _ in range(10))

    threads = [threading.Thread(target=look_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for rubbish in (
        b"\0" * 100_000,
        b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 500 + b"\r\n",
        b"\r\n\r\n",
        b"\xff" * 9,
    ):
        with socket.create_connection(where, timeout=EVENT_S) as connection:
            connection.sendall(rubbish)
    for thread in threads:
        thread.join()
    assert statuses == [200] * 40
    start = Metrics(daemon)
    assert start("forebay_connections", endpoint="control") == 0
    stage(daemon, {"k": {"x": np.arange(1024)}})
    assert Metrics(daemon)("forebay_micro_batches_published_total") == 1
