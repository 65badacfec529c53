"""The benchmark of staging ahead: three schedules on three wires, each beside the least that a model allows.

This process is the orchestrator; daemon and trainer are processes of their own. It never imports jax.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from forebay.daemon import LocalDaemon, local_daemon
from forebay.orchestrator_client import (
    Bar,
    MicroBatch,
    OrchestratorSettings,
    StageAhead,
    TrainerHandle,
    TrainStep,
    draw,
)
from forebay.wire import MIB, RAW, BrokenError, WaitTimeoutError

from .floor import Schedule, floor_of
from .overlap_result import WIRES, OverlapBenchResult, OverlapBenchSettings, OverlapRow
from .paced_wire import TracedPace
from .payload import micro_batch, payload_bytes

_START_S = 60.0
_STOP_S = 60.0
_STAGED_AHEAD = 2


class _Run:
    """One run of a schedule on a wire, with what is seen of it."""

    def __init__(self, wire: str, schedule: Schedule, settings: OverlapBenchSettings, payload: Any) -> None:
        self.wire = wire
        self.schedule = schedule
        self.bars: list[Bar] = []
        self.step_starts: list[float] = []
        self.fallbacks = 0
        self._settings = settings
        self._payload = payload

    async def measure(self, endpoint: str, control_endpoint: str) -> OverlapRow:
        """Runs it."""
        workload = self._settings.workload(self.wire)
        pace = TracedPace(workload.wire_s, payload_bytes(self._payload))
        # Raw: the trace says how long a micro-batch's own bytes take, and a codec would send fewer.
        async with TrainerHandle(endpoint, control_endpoint=control_endpoint, pace=pace, codec=RAW) as trainer:
            late_before = await trainer.call("late_copies")
            began_at = time.monotonic()
            await self._train(trainer)
            total_s = time.monotonic() - began_at
            late = await trainer.call("late_copies") - late_before
        floor = floor_of(workload, self.schedule)
        idle_s = total_s - workload.busy_s
        first_fill_s = min(bar.began_at for bar in self.bars if bar.lane == "device") - began_at
        return OverlapRow(
            wire=self.wire,
            schedule=self.schedule.value,
            total_s=total_s,
            idle_s=idle_s,
            floor_s=floor.total_s,
            over_floor=total_s / floor.total_s,
            idle=idle_s / total_s,
            floor_idle=floor.idle_share,
            first_fill_s=first_fill_s,
            idle_after_fill=(idle_s - first_fill_s) / total_s,
            fallbacks=self.fallbacks,
            late_copies=late,
        )

    async def _train(self, trainer: TrainerHandle) -> None:
        is_inline = self.schedule is Schedule.INLINE
        settings = OrchestratorSettings(max_staged_batches=0 if is_inline else _STAGED_AHEAD)
        across = self.schedule is Schedule.ACROSS
        async with StageAhead(trainer, self._source(), settings, across_steps=across) as ahead:
            async for step in ahead:
                self.step_starts.append(time.monotonic())
                async for _ in step:
                    pass
                self._keep(step)
                began_at = time.monotonic()
                await trainer.update()
                self.bars.append(Bar("device", "update", began_at, time.monotonic()))

    def _keep(self, step: TrainStep) -> None:
        keys = {times.key: f"{step.number}/{index}" for index, times in enumerate(step.micro_batches)}
        self.bars += [Bar(bar.lane, keys[bar.key], bar.began_at, bar.ended_at) for bar in step.spans]
        self.fallbacks += len(step.fallbacks)

    async def _source(self) -> AsyncIterator[MicroBatch]:
        count = len(WIRES[self.wire])
        for _ in range(self._settings.steps):
            for index in range(count):
                yield MicroBatch(self._payload, ends_step=index == count - 1)


def run(
    settings: OverlapBenchSettings, timeline: Path | None, environment: Mapping[str, str]
) -> OverlapBenchResult:
    """Runs the whole benchmark; nothing of it is left when this returns or raises.

    Args:
        settings: What is run.
        timeline: PNG to draw the three schedules on the first wire into.
        environment: Of the trainer's process, beside this process's own.

    Raises:
        BrokenError: A process ended badly.
        WaitTimeoutError: One does not start or end.
    """
    payload = micro_batch(settings.payload_mib)
    slot_bytes = payload_bytes(payload) + 2 * MIB
    with (
        tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder,
        local_daemon(slots=_STAGED_AHEAD + 2, slot_initial_bytes=slot_bytes, drain_s=0) as daemon,
        _trainer(daemon, folder, settings, environment) as (trainer, endpoint),
    ):
        processes = {"orchestrator": os.getpid(), "daemon": daemon.pid, "trainer": trainer.pid}
        runs, rows, device = asyncio.run(_all(settings, payload, endpoint, daemon.control_endpoint))
    if timeline is not None:
        shown = [one for one in runs if one.wire == settings.wires[0]]
        draw(
            [(f"{one.wire} wire, {one.schedule}", one.bars) for one in shown],
            timeline,
            marks=[one.step_starts for one in shown],
        )
    return OverlapBenchResult(
        rows=rows,
        settings=settings,
        compute="a timed wait stands in for the device's compute and for the update",
        wire="loopback, throttled by the sender to the stated times; compressed means half of them",
        copy="device_put is real; a timed wait fills it up to the stated time of a slower link",
        memory="host memory that glibc keeps when it is freed",
        processes=processes,
        device=device,
        timeline=None if timeline is None else str(timeline),
    )


async def _all(
    settings: OverlapBenchSettings, payload: Any, endpoint: str, control_endpoint: str
) -> tuple[list[_Run], list[OverlapRow], str]:
    _say("warming up")
    async with TrainerHandle(endpoint, control_endpoint=control_endpoint) as trainer:
        device = await trainer.call("device")
    warm = msgspec.structs.replace(settings, steps=1)
    await _Run(settings.wires[0], Schedule.WITHIN, warm, payload).measure(endpoint, control_endpoint)
    runs = [_Run(wire, schedule, settings, payload) for wire in settings.wires for schedule in Schedule]
    rows = []
    for number, one in enumerate(runs, 1):
        floor_s = floor_of(settings.workload(one.wire), one.schedule).total_s
        _say(f"run {number} of {len(runs)}: {one.wire} wire, {one.schedule}; {floor_s:.0f} s at least")
        rows.append(await one.measure(endpoint, control_endpoint))
    return runs, rows, device


@contextlib.contextmanager
def _trainer(
    daemon: LocalDaemon, folder: str, settings: OverlapBenchSettings, environment: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    words = [daemon.trainer_endpoint, folder, msgspec.json.encode(settings).decode()]
    process = subprocess.Popen(
        [sys.executable, "-m", "forebay.benchmarks.overlap_trainer", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    with process:
        try:
            yield process, _endpoint_of(process)
            assert process.stdin is not None
            process.stdin.close()
            _check_end(process)
        finally:
            process.kill()


def _endpoint_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], _START_S)[0]:
        raise WaitTimeoutError(f"the benchmark's trainer (pid {process.pid}) did not start within {_START_S:g} s")
    endpoint = process.stdout.readline().decode().strip()
    if not endpoint:
        raise BrokenError("the benchmark's trainer did not start; it said why on standard error")
    return endpoint


def _check_end(process: subprocess.Popen[bytes]) -> None:
    try:
        code = process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        raise WaitTimeoutError(f"the benchmark's trainer did not end within {_STOP_S:g} s") from None
    if code != 0:
        raise BrokenError(f"the benchmark's trainer ended with exit code {code}")


def _say(words: str) -> None:
    sys.stderr.write(f"bench overlap: {words}\n")
