"""A worker's books of calls with fake callers and threads: no socket, no clock."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec
import numpy as np

from forebay.trainer.call_books import CallBooks
from forebay.trainer.call_limits import CallLimits
from forebay.trainer.call_record import Address, Answer, CallRecord, GiveUp, LetGo, Receive, Run
from forebay.wire import (
    Call,
    CallId,
    CallState,
    CancelCall,
    ChunkFault,
    ChunkHeader,
    Granted,
    Limits,
    Message,
    PackedTree,
    Raised,
    RefusalCode,
    Refused,
    Returned,
    WorkerState,
    default_registry,
    describe,
    flatten,
    pack,
)

EPOCH = "this run"
LIMITS = Limits(chunk_bytes=256, max_manifest_bytes=4096, max_micro_batch_bytes=64 << 10)
LANES = {"step": "step", "stage": "stage", "update": "", "reset": ""}
"""The methods and their lanes: two of their own, and one that two share."""

M = TypeVar("M", bound=Message)
NO_OPTIONS = pack({}, registry=default_registry, limits=LIMITS)


def manifest_of(payload: Any) -> bytes:
    flat = flatten(payload, registry=default_registry, limits=LIMITS)
    return describe(flat, LIMITS).encode(LIMITS)


def payload_of(nbytes: int) -> bytes:
    """Encodes the manifest of a payload with one leaf of that many bytes, in spans of 256."""
    return manifest_of({"x": np.zeros(nbytes, np.uint8)})


def returned(number: int = 0, nbytes: int = 0) -> Returned:
    """Makes an answer that can be told from others, and takes that many bytes and a few."""
    return Returned(value=PackedTree(str(number).encode(), bytes(nbytes)))


def raised(told: str = "") -> Raised:
    return Raised(kind="E", words="no", traceback=told, began=True, state=WorkerState.FAILED)


def only(messages: Iterable[Message], kind: type[M]) -> M:
    """Returns the one message that there is."""
    [message] = messages
    assert isinstance(message, kind), message
    return message


def refused(messages: Iterable[Message]) -> RefusalCode:
    """Returns the code of the refusal that is the one message."""
    return only(messages, Refused).code


CONNECTION = Address(b"connection")


class CallDesk:
    """Does what the books say, and checks after every event what must always hold.

    Args:
        limits: Fields of `CallLimits`.

    Attributes:
        memory: Bytes that are taken for payloads, by payload number.
        runs: The calls that run, by lane.
        started: The ids of all calls that were run, in order.
        given_up: The ids of those that run, and that nobody waits for.
    """

    def __init__(self, **limits: Any) -> None:
        self.now = 1000.0
        self.limits = CallLimits(LIMITS, **limits)
        self.books = CallBooks(EPOCH, self.limits)
        self.has_memory = True
        self.memory: dict[int, int] = {}
        self.runs: dict[str, CallRecord] = {}
        self.started: list[CallId] = []
        self.given_up: list[CallId] = []
        self._ids = itertools.count(1)
        self._inboxes: dict[Address, list[Message]] = defaultdict(list)

    def new_id(self) -> int:
        return next(self._ids)

    def perform(self) -> None:
        """Does what was decided, as the worker's loop does."""
        while actions := self.books.take_actions():
            for action in actions:
                match action:
                    case Answer(to=to, message=message):
                        self._inboxes[to].append(message)
                    case Receive(call=call):
                        self._make_room(call)
                    case LetGo(payload_number=number):
                        del self.memory[number]
                    case GiveUp(call=call):
                        assert call in self.runs.values()
                        self.given_up.append(call.id)
                    case Run(call=call):
                        assert call.lane not in self.runs, "two calls of one lane at once"
                        self.runs[call.lane] = call
                        self.started.append(call.id)
        self._check()

    def _make_room(self, call: CallRecord) -> None:
        assert call.payload_number not in self.memory
        self.memory[call.payload_number] = call.body_bytes
        if self.has_memory:
            self.books.receives(call, self.now)
        else:
            self.books.cannot_receive(call, "no memory", self.now)

    def _check(self) -> None:
        unfinished = list(self.books.unfinished)
        assert set(self.memory) == {call.payload_number for call in unfinished if call.payload_number >= 0}
        assert sum(self.memory.values()) <= self.limits.inline_bytes
        assert len(unfinished) <= self.limits.waiting_calls
        assert {call.id for call in self.runs.values()} == {
            call.id for call in unfinished if call.state is CallState.RUNNING
        }
        assert self.books.is_running == bool(self.runs)
        assert all(call.answer is None and call.options is not None for call in unfinished)
        waiting = {call.lane for call in unfinished if call.state is CallState.QUEUED}
        assert waiting <= self.runs.keys(), "a lane stands still"
        due = self.books.next_deadline()
        silent = [
            max(call.deadline, call.arrivals.last_at + self.limits.receive_lease_s)
            for call in unfinished
            if call.state is CallState.RECEIVING and call.arrivals is not None
        ]
        assert due == min(silent, default=None)

    # Events.

    def heard(self, peer: Address) -> list[Message]:
        """Returns what a peer was told since it last looked."""
        return self._inboxes.pop(peer, [])

    def call(self, sender: Address, request: Call) -> list[Message]:
        self.books.call(sender, request, LANES.get(request.method), self.now)
        self.perform()
        return self.heard(sender)

    def cancel(self, sender: Address, call: CallId, epoch: str = EPOCH) -> list[Message]:
        self.books.cancel(sender, CancelCall(id=self.new_id(), epoch=epoch, call=call), self.now)
        self.perform()
        return self.heard(sender)

    def chunk(self, header: ChunkHeader) -> ChunkFault | None:
        """Brings a chunk, as the data socket would."""
        arrivals = self.books.incoming.claim(header)
        if isinstance(arrivals, ChunkFault):
            return arrivals
        assert header.slot in self.memory
        if self.books.incoming.settle(arrivals, header, None, self.now):
            self.books.filled(arrivals, self.now)
            self.perform()
        return None

    def end(self, lane: str, answer: Returned | Raised | None = None) -> CallRecord:
        """Ends the call that runs in a lane; returns it."""
        call = self.runs.pop(lane)
        self.books.ended(call, answer or returned(call.id.number), self.now)
        self.perform()
        return call

    def pass_time(self, seconds: float) -> None:
        """Moves the clock, as the loop does when a deadline is due."""
        self.now += seconds
        self.books.expire(self.now)
        self.perform()
        due = self.books.next_deadline()
        assert due is None or due > self.now, "the loop would spin"

    def drain(self) -> None:
        self.books.drain(self.now)
        self.perform()

    def snapshot(self) -> object:
        """Everything that a refused event must leave as it was."""
        books = self.books
        return (
            [(call.id, call.state, call.sender, call.message_id, call.deadline) for call in books.unfinished],
            [(call.id, call.answer) for call in books._over._calls.values()],
            dict(books._over._highest),
            dict(self.memory),
            list(self.runs),
            list(self.started),
        )


@dataclasses.dataclass
class Caller:
    """A caller on one connection; others may go on with its calls.

    Args:
        desk: Which.
        name: Its client id.
        address: Of its connection.
    """

    desk: CallDesk
    name: str = "caller"
    address: Address = CONNECTION
    numbers: Iterator[int] = dataclasses.field(default_factory=lambda: itertools.count(1))

    def request(self, method: str = "step", payload: bytes = b"", *, epoch: str = EPOCH) -> Call:
        """Makes a call that is not sent yet."""
        call = CallId(self.name, next(self.numbers))
        return Call(
            id=self.desk.new_id(), epoch=epoch, call=call, method=method, options=NO_OPTIONS, payload=payload
        )

    def say(self, request: Call) -> list[Message]:
        """Sends a call for the first time or again; each message has an id of its own."""
        return self.desk.call(self.address, msgspec.structs.replace(request, id=self.desk.new_id()))

    def begin(self, method: str = "step", payload: bytes = b"") -> Call:
        """Sends a new call."""
        request = self.request(method, payload)
        self.say(request)
        return request

    def cancel(self, request: Call) -> list[Message]:
        return self.desk.cancel(self.address, request.call, request.epoch)


def chunk_headers(granted: Granted, nbytes: int) -> list[ChunkHeader]:
    """Makes the headers of all chunks that a grant says are missing, of a payload with one leaf."""
    return [
        ChunkHeader(
            slot=granted.slot,
            span=span,
            length=min(256, nbytes - 256 * span),
            generation=granted.generation,
            token=granted.token,
            offset=256 * span,
            checksum=0,
        )
        for first, count in granted.missing
        for span in range(first, first + count)
    ]
