"""The demonstration as its user sees it: a daemon, an orchestrator and a trainer, each a process of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from forebay.daemon import LocalDaemon, local_daemon
from forebay.wire import MIB, BrokenError

from .events import AnyEvent, Compared, StagedBatch, TrainedBatch, TrainerDevice
from .memory_probe import MemoryProbe
from .result import DemoResult, StepSummary, idle_fraction, summarize
from .settings import ROW_BYTES, WAIT_S, DemoSettings
from .supervise import Child, ended_badly, events_of

E = TypeVar("E")


@dataclasses.dataclass(frozen=True, slots=True)
class _Record:
    """What was seen while the processes ran."""

    processes: dict[str, int]
    events: list[AnyEvent]
    memory: MemoryProbe

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def one(self, kind: type[E]) -> E:
        found = self.of(kind)
        if len(found) != 1:
            raise BrokenError(f"the trainer reported {len(found)} {kind.__name__} events", limit="1")
        return found[0]


def run_demo(
    settings: DemoSettings, *, slots: int, on_event: Callable[[AnyEvent], None]
) -> tuple[DemoResult, list[StepSummary]]:
    """Runs the demonstration; nothing of it is left when this returns or raises.

    Args:
        settings: What is sent and trained.
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
        slot_bytes = settings.rows * ROW_BYTES + MIB
        with local_daemon(slots=slots, slot_initial_bytes=slot_bytes, drain_s=0, log_file=log) as daemon:
            record = _run_children(daemon, settings, log, on_event)
        _check_daemon(daemon, log, may_have_ended=True)
    return _result(record, settings, _left_over(daemon.pool), time.monotonic() - started)


def _run_children(
    daemon: LocalDaemon, settings: DemoSettings, log: Path, on_event: Callable[[AnyEvent], None]
) -> _Record:
    inbox: queue.SimpleQueue[tuple[Child, AnyEvent | None]] = queue.SimpleQueue()
    commands = {"orchestrator": daemon.control_endpoint, "trainer": daemon.trainer_endpoint}
    events = []
    with MemoryProbe(daemon.pid) as memory, contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(Child(name, [f"forebay.demo.{name}", endpoint, settings.encode()], inbox))
            for name, endpoint in commands.items()
        ]
        processes = {"daemon": daemon.pid} | {child.name: child.process.pid for child in children}
        for event in events_of(children, inbox, timeout_s=WAIT_S, check_others=lambda: _check_daemon(daemon, log)):
            events.append(event)
            on_event(event)
    return _Record(processes, events, memory)


def _check_daemon(daemon: LocalDaemon, log: Path, *, may_have_ended: bool = False) -> None:
    code = daemon.process.poll()
    if code is None or (code == 0 and may_have_ended):
        return
    raise ended_badly("daemon", daemon.pid, code, log.read_text(errors="replace").splitlines())


def _left_over(pool: Path) -> list[str]:
    # The pool's folder holds all that the run makes in shared memory, sockets included.
    return [str(path) for path in (pool, *pool.rglob("*")) if path.exists()]


def _result(
    record: _Record, settings: DemoSettings, left_over: list[str], seconds: float
) -> tuple[DemoResult, list[StepSummary]]:
    trained, staged = record.of(TrainedBatch), record.of(StagedBatch)
    compared, device = record.one(Compared), record.one(TrainerDevice)
    steps = summarize(trained, staged)
    result = DemoResult(
        processes=record.processes,
        device=f"{device.name} ({device.kind})",
        steps=len(steps),
        micro_batches=len(trained),
        payload_bytes=sum(event.payload_bytes for event in staged),
        losses=[step.losses for step in steps],
        bit_identical=not compared.differences and len(trained) == settings.total,
        differences=compared.differences,
        compared_leaves=compared.leaves,
        idle_fraction=idle_fraction(trained),
        daemon_private_mib=record.memory.peak_mib,
        daemon_private_mib_before=record.memory.first_mib,
        leaked_shm=left_over,
        seconds=seconds,
    )
    return result, steps
