"""The demonstration as its user sees it: a daemon, an orchestrator and a trainer, each a process of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import queue
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from forebay.daemon import LocalDaemon, local_daemon
from forebay.wire import MIB, BrokenError

from .batches import key_of
from .endpoints import Endpoints
from .events import AnyEvent, Calibrated, Compared, PulledBatch, TrainedBatch, TrainedStep, TrainerDevice
from .memory_probe import MemoryProbe
from .result import DemoResult, DemoRun, first_fill_s, idle_fraction
from .settings import WAIT_S, DemoSettings
from .supervise import Child, Inbox, ended_badly, events_of

E = TypeVar("E")


@dataclasses.dataclass(frozen=True, slots=True)
class _Record:
    """What was seen while the processes ran."""

    processes: dict[str, int]
    events: list[AnyEvent]
    memory: MemoryProbe

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]


def run_demo(settings: DemoSettings, *, slots: int, on_event: Callable[[AnyEvent], None]) -> DemoRun:
    """Runs the demonstration in one mode; nothing of it is left when this returns or raises.

    Args:
        settings: What is sent and trained, and how.
        slots: Slots of the daemon's pool.
        on_event: Called with each event as it comes.

    Raises:
        ChildError: A process ended badly.
        WaitTimeoutError: One of them hangs.
        HostError: The daemon cannot start here.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="forebay-demo-") as folder:
        log = Path(folder, "daemon.log")
        # Slots that fit from the start: growing them would be measured as staging. Nothing to drain at the end:
        # by then the orchestrator is gone.
        slot_bytes = settings.payload_bytes + MIB
        with local_daemon(slots=slots, slot_initial_bytes=slot_bytes, drain_s=0, log_file=log) as daemon:
            record = _run_children(daemon, settings, log, on_event)
        _check_daemon(daemon, log, may_have_ended=True)
    result = _result(record, settings, _left_over(daemon.pool), time.monotonic() - started)
    return DemoRun(result, record.of(TrainedStep))


def measure_compute_s(settings: DemoSettings) -> float:
    """Returns the seconds that the device takes for a micro-batch when nothing else goes on.

    Raises:
        ChildError: The process that measures ended badly.
        WaitTimeoutError: It hangs.
    """
    inbox: Inbox = queue.SimpleQueue()
    with Child("calibration", ["forebay.demo.calibrate", settings.encode()], inbox) as child:
        events = list(events_of([child], inbox, timeout_s=WAIT_S, check_others=lambda: None))
    return _one(events, Calibrated).compute_s


def _run_children(
    daemon: LocalDaemon, settings: DemoSettings, log: Path, on_event: Callable[[AnyEvent], None]
) -> _Record:
    inbox: Inbox = queue.SimpleQueue()
    endpoints = Endpoints.in_pool(daemon.pool, control=daemon.control_endpoint, trainer=daemon.trainer_endpoint)
    arguments = [settings.encode(), endpoints.encode()]
    events = []
    with MemoryProbe(daemon.pid) as memory, contextlib.ExitStack() as stack:
        stack.callback(endpoints.remove_worker_files)
        children = [
            stack.enter_context(Child(name, [f"forebay.demo.{name}", *arguments], inbox))
            for name in ("orchestrator", "trainer")
        ]
        processes = {"daemon": daemon.pid} | {child.name: child.process.pid for child in children}
        for event in events_of(children, inbox, timeout_s=WAIT_S, check_others=lambda: _check_daemon(daemon, log)):
            events.append(event)
            on_event(event)
    return _Record(processes, events, memory)


def _one(events: list[AnyEvent], kind: type[E]) -> E:
    found = [event for event in events if isinstance(event, kind)]
    if len(found) != 1:
        raise BrokenError(f"the processes reported {len(found)} {kind.__name__} events", limit="1")
    return found[0]


def _check_daemon(daemon: LocalDaemon, log: Path, *, may_have_ended: bool = False) -> None:
    code = daemon.process.poll()
    if code is None or (code == 0 and may_have_ended):
        return
    raise ended_badly("daemon", daemon.pid, code, log.read_text(errors="replace").splitlines())


def _left_over(pool: Path) -> list[str]:
    # The pool's folder holds all that the run makes in shared memory, sockets included.
    return [str(path) for path in (pool, *pool.rglob("*")) if path.exists()]


def _result(record: _Record, settings: DemoSettings, left_over: list[str], seconds: float) -> DemoResult:
    trained, steps = record.of(TrainedBatch), record.of(TrainedStep)
    compared, device = _one(record.events, Compared), _one(record.events, TrainerDevice)
    differences = (*compared.differences, *_disorder(trained, settings))
    return DemoResult(
        mode=settings.mode,
        processes=record.processes,
        device=f"{device.name} ({device.kind})",
        wire_gbit_s=settings.wire_gbit_s,
        steps=len(steps),
        micro_batches=len(trained),
        staged=sum(event.source == "staged" for event in trained),
        inline=sum(event.source == "inline" for event in trained),
        fallbacks=sum(len(step.fallbacks) for step in steps),
        fallback_reasons=[fallback for step in steps for fallback in step.fallbacks],
        payload_bytes=sum(event.payload_bytes for event in record.of(PulledBatch)),
        losses=[[event.loss for event in trained if event.step == step.number] for step in steps],
        bit_identical=not differences,
        differences=differences,
        compared_leaves=compared.leaves,
        parameters_digest=compared.parameters,
        seconds_a_step=sum(step.metrics["stage/step_s"] for step in steps) / len(steps),
        idle_fraction=idle_fraction(steps),
        first_fill_s=first_fill_s(steps),
        idle_fraction_after_fill=idle_fraction(steps, left_out_s=first_fill_s(steps)),
        step_metrics=[step.metrics for step in steps],
        daemon_private_mib=record.memory.peak_mib,
        daemon_private_mib_before=record.memory.first_mib,
        leaked_shm=left_over,
        seconds=seconds,
    )


def _disorder(trained: list[TrainedBatch], settings: DemoSettings) -> Iterator[str]:
    places = itertools.product(range(settings.steps), range(settings.micro_batches))
    if [(event.step, event.key) for event in trained] != [(step, key_of(step, index)) for step, index in places]:
        yield f"{len(trained)} micro-batches were trained, not {settings.total}, or not in their order"
