"""The benchmark of the codecs: how many bytes they save, and what that wins on a slow wire.

This process is the sender; the daemon is a process of its own.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from forebay.daemon import local_daemon
from forebay.orchestrator_client import LeafReport, Refusal, StagingClient, SteadyPace
from forebay.wire import CODECS, MIB, RAW, BrokenError, DataProtection, LocalError, decode_chunk, encode_chunk

from .codecs_result import CodecsBenchResult, CodecsBenchSettings, KindResult, ThreadResult
from .payload import largest_leaf, micro_batch, payload_bytes
from .process_cost import ProcessCost

_FILLED: Final = 0.6
_ROWS: Final = 64
_STAGE_S: Final = 120.0
_CHUNK_REPEATS: Final = 20


def run(settings: CodecsBenchSettings) -> CodecsBenchResult:
    """Runs the whole benchmark; nothing of it is left when this returns or raises.

    Raises:
        BrokenError: The daemon refused a micro-batch.
    """
    full = micro_batch(settings.payload_mib)
    payloads = {"full": full, "fill60": _padded(full), "raw": full}
    slot_bytes = payload_bytes(full) + MIB
    tcp = "tcp://127.0.0.1:*"
    with local_daemon(
        slots=2, slot_initial_bytes=slot_bytes, control_endpoint=tcp, data_endpoint=tcp, drain_s=0
    ) as daemon:
        bench = _Bench(settings, daemon.control_endpoint, daemon.pid)
        kinds = asyncio.run(bench.throttled(payloads))
        unthrottled = asyncio.run(bench.unthrottled(full))
    return CodecsBenchResult(
        full=kinds["full"].ratio,
        fill60=kinds["fill60"].ratio,
        full_gbps=kinds["full"].gbps,
        fill60_gbps=kinds["fill60"].gbps,
        raw_gbps=kinds["raw"].gbps,
        unthrottled=unthrottled,
        kinds=kinds,
        thread={codec: _one_thread(codec, full) for codec in CODECS if codec != RAW},
        daemon_private_mib=bench.daemon.peak_mib,
        settings=settings,
        wire=f"loopback TCP, the sender throttled to {settings.wire_gb_s:g} GB/s: a stand-in",
    )


class _Bench:
    def __init__(self, settings: CodecsBenchSettings, endpoint: str, daemon_pid: int) -> None:
        self._settings = settings
        self._endpoint = endpoint
        self.daemon = ProcessCost(daemon_pid)
        self._sender = ProcessCost(os.getpid())

    async def throttled(self, payloads: dict[str, Any]) -> dict[str, KindResult]:
        """Stages the kinds in turn over the slow wire."""
        pace = SteadyPace(self._settings.wire_gb_s * 1e9)
        rounds: dict[str, list[_Round]] = {kind: [] for kind in payloads}
        async with (
            self._client(self._settings.codec, pace) as chosen,
            self._client(RAW, pace) as raw,
        ):
            for number in range(1 + self._settings.rounds):
                _say(f"round {number} of {self._settings.rounds}" if number else "warming up")
                for kind, payload in payloads.items():
                    client = raw if kind == "raw" else chosen
                    one = await self._round(client, payload, f"{kind}-{number}")
                    if number:
                        rounds[kind].append(one)
        return {kind: _kind(of_kind) for kind, of_kind in rounds.items()}

    async def unthrottled(self, payload: Any) -> float:
        """Stages over the wire as it is; returns wire bytes over array bytes."""
        _say("without the throttle")
        async with self._client(self._settings.codec) as client:
            for number in range(3):
                one = await self._round(client, payload, f"fast-{number}")
        return one.ratio

    def _client(self, codec: str, pace: SteadyPace | None = None) -> StagingClient:
        # What this user's environment says of keys, and of what has to guard the data, is for other daemons.
        return StagingClient(
            self._endpoint,
            codec=codec,
            least_data_protection=DataProtection.NONE,
            pace=pace,
            client_key_file="",
            server_key_file="",
        )

    async def _round(self, client: StagingClient, payload: Any, key: str) -> _Round:
        before = self.daemon.cpu_s, self._sender.cpu_s
        with self.daemon, self._sender:
            began_at = time.monotonic()
            staged = await client.stage(payload, key=key, timeout_s=_STAGE_S)
            seconds = time.monotonic() - began_at
        if isinstance(staged, Refusal):
            raise BrokenError(f"the daemon refused {key!r} ({staged.code}): {staged.words}")
        await client.reset()
        largest = max(staged.leaves, key=lambda leaf: leaf.payload_bytes)
        gb = staged.payload_bytes / 1e9
        costs = (self.daemon.cpu_s - before[0]) / gb, (self._sender.cpu_s - before[1]) / gb
        return _Round(largest, gb / seconds, *costs)


class _Round:
    def __init__(self, leaf: LeafReport, gbps: float, daemon_cpu: float, sender_cpu: float) -> None:
        self.codec = leaf.codec
        self.ratio = leaf.wire_bytes / leaf.payload_bytes
        self.gbps = gbps
        self.daemon_cpu = daemon_cpu
        self.sender_cpu = sender_cpu


def _kind(rounds: list[_Round]) -> KindResult:
    gbps = [one.gbps for one in rounds]
    return KindResult(
        codec=rounds[-1].codec,
        ratio=statistics.median(one.ratio for one in rounds),
        gbps=statistics.median(gbps),
        gbps_spread=(min(gbps), max(gbps)),
        sender_cpu_s_per_gb=statistics.median(one.sender_cpu for one in rounds),
        daemon_cpu_s_per_gb=statistics.median(one.daemon_cpu for one in rounds),
    )


def _padded(full: dict[str, Any]) -> dict[str, Any]:
    """Returns the same micro-batch with its rows filled to 60 %."""
    experts = largest_leaf(full).copy()
    row = max(1, len(experts) // _ROWS)
    for start in range(0, len(experts), row):
        experts[start + round(_FILLED * row) : start + row] = -1
    return full | {"train_example": full["train_example"] | {"routed_experts": experts}}


def _one_thread(codec: str, full: dict[str, Any]) -> ThreadResult:
    octets = largest_leaf(full).reshape(-1).view(np.uint8)[:MIB]
    encoded = encode_chunk(codec, octets.data, 2)
    if encoded is None:
        raise LocalError(f"{codec} saves nothing of expert ids")
    place = np.empty_like(octets)
    return ThreadResult(
        encode_gbps=octets.nbytes / 1e9 / _seconds(lambda: encode_chunk(codec, octets.data, 2)),
        decode_gbps=octets.nbytes / 1e9 / _seconds(lambda: decode_chunk(codec, encoded, place.data)),
    )


def _seconds(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_CHUNK_REPEATS):
        began_at = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began_at)
    return statistics.median(seconds)


def _say(words: str) -> None:
    sys.stderr.write(f"bench codecs: {words}\n")
