"""Injects the planned faults: when each is due, what is done, and what ends it again."""

from __future__ import annotations

import functools
import heapq
import itertools
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from forebay.wire import words_of

from .soak_evidence import Injected
from .soak_faults import (
    ADVANCE,
    CANCEL,
    CUT,
    FULL,
    GARBAGE,
    KILL,
    ORCHESTRATORS,
    RESET,
    STOP,
    STRANGER,
    TERM,
    Fault,
)
from .soak_hostile import send_garbage
from .soak_party import Party
from .soak_place import Place
from .soak_strangers import knock
from .soak_wire import Wire
from .soak_words import now

_LATER_S: Final = 0.25
"""After which is looked again whether a process is at work."""


class Injection:
    """The faults of one run.

    Args:
        place: Folders and ports.
        parties: By name; they may come later.
        wires: By orchestrator; they may come later.

    Attributes:
        injected: Every fault that was, so far.
        got: What strangers got, who may get nothing: the monotonic second, and what.
    """

    def __init__(self, place: Place, parties: Mapping[str, Party], wires: Mapping[str, Wire]) -> None:
        self.injected: list[Injected] = []
        self.got: list[tuple[float, str]] = []
        self._place = place
        self._parties = parties
        self._wires = wires
        self._began_at = now()
        self._threads: list[threading.Thread] = []
        self._order = itertools.count()
        self._planned: list[tuple[float, int, Fault]] = []
        self._ends: list[tuple[float, int, Callable[[], object]]] = []

    def begin(self, plan: Sequence[Fault], began_at: float) -> None:
        """Begins a plan at a monotonic second."""
        self._began_at = began_at
        for fault in plan:
            heapq.heappush(self._planned, (began_at + fault.at_s, next(self._order), fault))

    def begin_no_more(self) -> None:
        """Forgets what has not begun; what has is still to end."""
        self._planned.clear()

    def next_at(self, default: float) -> float:
        """Returns the monotonic second at which something is due next."""
        return min((each[0][0] for each in (self._planned, self._ends) if each), default=default)

    def do_what_is_due(self) -> None:
        """Ends and begins what is due by now."""
        while self._ends and self._ends[0][0] <= now():
            heapq.heappop(self._ends)[2]()
        while self._planned and self._planned[0][0] <= now():
            self.do(heapq.heappop(self._planned)[2])

    def end_all(self) -> None:
        """Ends at once all that has begun."""
        while self._ends:
            heapq.heappop(self._ends)[2]()

    def wait(self, timeout_s: float) -> None:
        """Waits for what runs in threads, so long for each."""
        for thread in self._threads:
            thread.join(timeout_s)

    def do(self, fault: Fault) -> None:
        """Injects a fault now, or as soon as its victim is at work."""
        at = now()
        party = self._parties.get(fault.victim)
        if fault.kind in (KILL, TERM, STOP) and party is not None and not (fault.early or party.is_at_work):
            heapq.heappush(self._planned, (at + _LATER_S, next(self._order), fault))
            return
        injected = Injected(at=at, fault=fault, over_at=at + fault.lasts_s)
        if self._do(injected):
            self.injected.append(injected)
            lasts = f" for {fault.lasts_s:g} s" if fault.lasts_s else ""
            say(f"{at - self._began_at:6.1f} s {fault.name}{lasts}")

    def _do(self, injected: Injected) -> bool:
        """Does it, and has what lasts end; returns whether there was anything to do it to."""
        fault = injected.fault
        if fault.kind in (KILL, TERM, STOP):
            return self._signal(injected)
        if fault.kind == CUT:
            wire = self._wires[fault.victim]
            wire.begin(fault.how, fault.way)
            self._end_later(injected, functools.partial(wire.end, fault.how, fault.way))
        elif fault.kind == CANCEL:
            self._parties[fault.victim].order(f"cancel {fault.seed}")
        elif fault.kind in (RESET, ADVANCE):
            for name in ORCHESTRATORS:
                # At a reset all go back, but one says so.
                words = "version" if fault.kind == RESET and name != fault.victim else fault.kind
                self._parties[name].order(f"{words} {fault.version}")
        elif fault.kind in (GARBAGE, STRANGER):
            visit = {GARBAGE: self._send_garbage, STRANGER: self._knock}[fault.kind]
            thread = threading.Thread(target=visit, args=(fault.seed,), daemon=True)
            self._threads.append(thread)
            thread.start()
        elif fault.kind == FULL:
            self._place.fill()
            self._end_later(injected, self._place.make_room)
        return True

    def _send_garbage(self, seed: int) -> None:
        place = self._place
        send_garbage(seed, (place.control_endpoint, place.data_endpoint, place.trainer_endpoint))

    def _knock(self, seed: int) -> None:
        assert self._place.keys is not None
        try:
            got = knock(seed, self._place.control_endpoint, self._place.keys)
        except Exception as error:  # noqa: BLE001 - a visit that came to nothing shows nothing
            got = [words_of(error)]
        self.got.extend((now(), words) for words in got)

    def _signal(self, injected: Injected) -> bool:
        party, kind = self._parties[injected.fault.victim], injected.fault.kind
        if kind == STOP:
            life = party.stop()
        else:
            # A process that is stopped takes no SIGTERM before it goes on.
            life = party.signal({KILL: signal.SIGKILL, TERM: signal.SIGTERM}[kind])
        if life is None:
            return False
        injected.life, injected.was_at_work = life.number, bool(life.at_work_at)
        if kind == STOP:
            self._end_later(injected, functools.partial(party.go_on, life))
        return True

    def _end_later(self, injected: Injected, end: Callable[[], object]) -> None:
        """Has a fault end when it is to, and notes when it did."""

        def act() -> None:
            end()
            injected.over_at = now()

        heapq.heappush(self._ends, (injected.over_at, next(self._order), act))


def say(words: str) -> None:
    """Tells people how far the soak is."""
    sys.stderr.write(f"bench soak: {words}\n")
