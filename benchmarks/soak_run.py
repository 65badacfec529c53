"""The soak's run: starts the processes, injects the planned faults, watches, and ends everything in order."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import time
from typing import Final

from forebay.orchestrator_client import StagingClient
from forebay.wire import DataProtection, ForebayError, Status

from .soak_evidence import Injected, Trouble
from .soak_faults import DAEMON, ORCHESTRATORS, TERM, TRAINER, Fault, chosen
from .soak_injection import Injection, say
from .soak_keys import INSPECTOR
from .soak_parties import bad_lines, make_parties, tail
from .soak_party import Life, Party
from .soak_place import Place
from .soak_result import SoakSettings
from .soak_wire import Wire
from .soak_words import Did, OrchestratorLine, Reader, TrainerLine, now, read_lines

_TURN_S: Final = 0.5
_SAY_EVERY_S: Final = 5.0
_DRAIN_S: Final = 600.0
_END_S: Final = 60.0
_PATIENCE: Final = 5
_FREE_S: Final = 20.0


@dataclasses.dataclass(kw_only=True)
class RunResult:
    """What a run left to be balanced.

    Attributes:
        began_at: Monotonic second of the plan's begin.
        told: Lines of each orchestrator.
        did: Lines of the trainer.
        injected: Every fault that was.
        lives: The processes of each party.
        troubles: What the processes themselves show: exit codes, log lines, a watchdog.
        daemon_starts_at_s: Seconds from the plan's begin at which each daemon was at work.
        stuck: Slots that are not FREE, in words.
        left_behind: Path and bytes.
        beyond_limit_bytes: The most that the pool took beyond its limit.
    """

    began_at: float
    told: dict[str, list[OrchestratorLine]] = dataclasses.field(default_factory=dict)
    did: list[TrainerLine] = dataclasses.field(default_factory=list)
    injected: list[Injected] = dataclasses.field(default_factory=list)
    lives: dict[str, list[Life]] = dataclasses.field(default_factory=dict)
    troubles: list[Trouble] = dataclasses.field(default_factory=list)
    daemon_starts_at_s: list[float] = dataclasses.field(default_factory=list)
    stuck: list[str] = dataclasses.field(default_factory=list)
    left_behind: dict[str, int] = dataclasses.field(default_factory=dict)
    beyond_limit_bytes: int = 0


class HangError(Exception):
    """Nothing was trained for too long; what was seen is among the run's troubles."""


class Run:
    """One run.

    Args:
        settings: Of the soak.
        place: Folders and ports.
        faults: The plan.
    """

    def __init__(self, settings: SoakSettings, place: Place, faults: list[Fault]) -> None:
        self._settings = settings
        self._place = place
        self._faults = faults
        self._has_faults = bool(chosen(settings.faults))
        self._keeps_pool = self._has_faults
        self._parties: dict[str, Party] = {}
        self._wires: dict[str, Wire] = {}
        self._reader = Reader(place.books / f"{TRAINER}.jsonl", TrainerLine)
        self._trained = 0
        self._trained_at = self._disturbed_at = now()
        self._said_at = 0.0
        self._injection = Injection(place, self._parties, self._wires)
        self._result = RunResult(began_at=now(), injected=self._injection.injected)

    def run(self) -> RunResult:
        """Runs from the first process to the last; none is left when this returns or raises."""
        with contextlib.ExitStack() as stack:
            for name in ORCHESTRATORS:
                place = self._place
                wire = Wire(place.control_port, place.data_port, place.proxy_ports[name])
                self._wires[name] = stack.enter_context(wire)
            for party in make_parties(self._settings, self._place, self._wires, lambda: self._keeps_pool):
                self._parties[party.name] = stack.enter_context(party)
                # Who is started before all that it needs meets trouble that no fault explains.
                party.wait_until_at_work(self._settings.watchdog_s)
            with contextlib.suppress(HangError):
                self._inject_all()
                self._drain()
            self._injection.wait(_END_S)
        self._collect()
        return self._result

    # Faults.

    def _inject_all(self) -> None:
        self._result.began_at = began_at = now()
        end_at = began_at + 60 * self._settings.minutes
        self._injection.begin(self._faults, began_at)
        while now() < end_at:
            self._turn(min(self._injection.next_at(end_at), end_at))
            self._injection.do_what_is_due()
        self._injection.begin_no_more()

    # Watching.

    def _turn(self, until: float) -> None:
        time.sleep(max(0.0, min(_TURN_S, until - now())))
        self._look()

    def _look(self) -> None:
        ends = [line for line in self._reader.more() if line.what is Did.END]
        if ends:
            self._trained += len(ends)
            self._trained_at = ends[-1].at
        beyond = self._place.bytes_beyond_limit()
        self._result.beyond_limit_bytes = max(self._result.beyond_limit_bytes, beyond)
        if now() - self._said_at >= _SAY_EVERY_S:
            self._said_at = now()
            lives = ", ".join(f"{party.name} {len(party.lives)}" for party in self._parties.values())
            say(f"{now() - self._result.began_at:6.1f} s {self._trained} trained; lives: {lives}")
        self._watch_progress()

    def _watch_progress(self) -> None:
        """Gives up if nothing is trained while everybody is at work; or for very much longer, whoever is."""
        if not all(party.is_at_work or party.has_ended for party in self._parties.values()):
            self._disturbed_at = now()
        limit_s = self._settings.watchdog_s
        idle_s = now() - self._trained_at
        if idle_s > _PATIENCE * limit_s or now() - max(self._trained_at, self._disturbed_at) > limit_s:
            self._give_up(f"nothing was trained for {idle_s:.0f} s")

    def _give_up(self, words: str) -> None:
        """Writes down what can be seen of a hang: what the daemon holds, and every process's stacks."""
        status = self._status()
        say(f"{words}; the stacks are in the logs; the daemon says {status}")
        for party in self._parties.values():
            party.signal(signal.SIGUSR1)
        time.sleep(1.0)
        stacks = "".join(f"\n{party.name}: {tail(party.log)}" for party in self._parties.values())
        self._trouble("soak", "log", "watchdog", f"{words}; status {status}; stacks:{stacks}")
        raise HangError

    def _status(self) -> Status | str:
        async def ask() -> Status:
            client = StagingClient(
                self._place.control_endpoint,
                name="soak",
                timeout_s=5.0,
                least_data_protection=DataProtection.NONE,
                **self._place.keys_of(INSPECTOR)._asdict(),
            )
            async with client:
                return await client.status()

        try:
            return asyncio.run(ask())
        except ForebayError as error:
            return f"nothing: {error}"

    # The end.

    def _drain(self) -> None:
        """Has all keys come to their outcomes, and ends everything in order."""
        say(f"{now() - self._result.began_at:6.1f} s no more faults: what is under way is finished")
        self._injection.end_all()
        for name, party in self._parties.items():
            if name in ORCHESTRATORS:
                party.may_end()
                party.order("finish", lasts=True)
        if self._has_faults:
            # One more orderly restart: the last daemon removes its pool.
            self._keeps_pool = False
            fault = Fault(at_s=now() - self._result.began_at, kind=TERM, victim=DAEMON, early=True)
            self._injection.do(fault)
        self._trained_at = now()
        self._wait_for_orchestrators()
        self._wait_until_free()
        for name in (TRAINER, DAEMON):
            self._end(self._parties[name])

    def _wait_for_orchestrators(self) -> None:
        waits_until = now() + _DRAIN_S
        waiting = [self._parties[name] for name in ORCHESTRATORS]
        while waiting := [party for party in waiting if not party.wait_until_ended(_TURN_S)]:
            self._look()
            if now() > waits_until:
                self._give_up(f"{waiting} did not finish within {_DRAIN_S:g} s")

    def _wait_until_free(self) -> None:
        waits_until = now() + _FREE_S
        while stuck := self._stuck():
            if now() > waits_until:
                self._result.stuck = stuck
                return
            time.sleep(_TURN_S)

    def _stuck(self) -> list[str]:
        status = self._status()
        if isinstance(status, str):
            return [f"the daemon's status: {status}"]
        return [f"slot {slot.index} {slot.state} {slot.key!r}" for slot in status.slots if slot.state != "FREE"]

    def _end(self, party: Party) -> None:
        party.may_end()
        party.signal(signal.SIGTERM)
        if not party.wait_until_ended(_END_S):
            self._give_up(f"{party!r} did not end within {_END_S:g} s of SIGTERM")

    def _collect(self) -> None:
        result, books = self._result, self._place.books
        result.told = {name: read_lines(books / f"{name}.jsonl", OrchestratorLine) for name in ORCHESTRATORS}
        result.did = read_lines(books / f"{TRAINER}.jsonl", TrainerLine)
        result.left_behind = self._place.left_behind()
        result.lives = {party.name: party.lives for party in self._parties.values()}
        starts = [life.at_work_at for life in result.lives[DAEMON] if life.at_work_at]
        result.daemon_starts_at_s = [round(at - result.began_at, 2) for at in starts]
        for at, words in self._injection.got:
            result.troubles.append(Trouble(at=at, who="stranger", kind="stranger", name="let_in", words=words))
        for party in self._parties.values():
            self._collect_ends(party)
            for line in bad_lines(party.log):
                self._trouble(party.name, "log", "ERROR", line)

    def _collect_ends(self, party: Party) -> None:
        """Notes how each process ended, but for the last one if that was in order."""
        for life in party.lives:
            is_the_end = life is party.lives[-1] and life.code == 0
            if not is_the_end and not life.was_swept:
                words = f"life {life.number}, pid {life.pid}"
                self._trouble(party.name, "exit", str(life.code), words, life)

    def _trouble(self, who: str, kind: str, name: str, words: str, life: Life | None = None) -> None:
        at, number = (now(), 0) if life is None else (life.ended_at, life.number)
        self._result.troubles.append(Trouble(at=at, who=who, kind=kind, name=name, words=words, life=number))
