"""A history of calls by several clients over a network that loses, repeats and delays; what must hold in it."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import pytest

from forebay.trainer.call_record import Address
from forebay.wire import (
    Call,
    CallId,
    CallState,
    ChunkHeader,
    Granted,
    Message,
    Raised,
    RefusalCode,
    Refused,
    Returned,
)

from .call_desk import LANES, CallDesk, Caller, chunk_headers, manifest_of, payload_of, raised, returned

METHODS = (*LANES, "nothing")
SIZES = (None, None, 0, 100, 600, 2000)
PAYLOADS = {None: b"", 0: manifest_of({"static": 1})} | {size: payload_of(size) for size in (100, 600, 2000)}
ANSWER_BYTES = (0, 10, 700)
MAX_ANSWERS = 1000
LEASE_S = 30.0


class History:
    """Three clients, each with two connections, and a worker that remembers little.

    The numbers that its events take are any; they are wrapped to what there is.
    """

    def __init__(self) -> None:
        self._patches = pytest.MonkeyPatch()
        self._patches.setattr("forebay.trainer.call_memory._MAX_BYTES", MAX_ANSWERS)
        self.desk = CallDesk(receive_lease_s=LEASE_S, inline_bytes=4000, remembered_calls=6, waiting_calls=4)
        self.callers = [Caller(self.desk, name) for name in "abc"]
        self.requests: list[Call] = []
        self.sizes: dict[CallId, int] = {}
        self.chunks: list[ChunkHeader] = []
        self.asked: dict[int, CallId] = {}
        self.answers: dict[CallId, Message] = {}
        self.cancelled: set[CallId] = set()
        self.complete: dict[str, list[CallId]] = defaultdict(list)

    # Events.

    def make(self, client: int, method: int, size: int) -> None:
        """A client makes a call; it is not there yet."""
        caller, nbytes = self.callers[client % 3], SIZES[size % len(SIZES)]
        request = caller.request(METHODS[method % len(METHODS)], PAYLOADS[nbytes])
        self.requests.append(request)
        self.sizes[request.call] = nbytes or 0

    def deliver(self, back: int, connection: int) -> None:
        """A call arrives, for the first time or again."""
        if self.requests:
            self._say(self._request(back), connection)

    def call(self, client: int, method: int, size: int) -> None:
        """A client makes a call, which arrives."""
        self.make(client, method, size)
        self._say(self.requests[-1], 0)

    def misdirect(self, back: int) -> None:
        """A call arrives that was meant for another run."""
        if self.requests:
            before = self.desk.snapshot()
            self._say(msgspec.structs.replace(self._request(back), epoch="another run"), 0)
            assert self.desk.snapshot() == before

    def cancel(self, back: int) -> None:
        """Somebody gives a call up."""
        if not self.requests:
            return
        call = self._request(back).call
        if call not in self.desk.started:
            # From now on it must not run: it waits, or has never come, or is over without having run.
            self.cancelled.add(call)
        self.desk.cancel(Address(b"0"), call)
        self._after_event()

    def bring(self, first: int, count: int) -> None:
        """Some chunks arrive; old ones as well."""
        if self.chunks:
            start = first % len(self.chunks)
            for header in self.chunks[start : start + count % 9 + 1]:
                self.desk.chunk(header)
                self._after_event()

    def bring_all(self) -> None:
        headers, self.chunks = self.chunks, []
        for header in headers:
            self.desk.chunk(header)
            self._after_event()

    def end(self, lane: int, nbytes: int) -> None:
        """A call that runs returns or raises."""
        if self.desk.runs:
            running = sorted(self.desk.runs)
            call = self.desk.runs[running[lane % len(running)]]
            size = ANSWER_BYTES[nbytes % len(ANSWER_BYTES)]
            answer = (
                returned(len(self.answers), size) if nbytes % 2 else raised(f"{len(self.answers)}" + "x" * size)
            )
            assert call.id not in self.answers
            self.answers[call.id] = answer
            self.desk.end(call.lane, answer)
            self._after_event()

    def pass_time(self, seconds: int) -> None:
        self.desk.pass_time(seconds % 40)
        self._after_event()

    def run_out_of_memory(self, is_so: int) -> None:
        self.desk.has_memory = is_so % 4 != 0

    # What holds.

    def _request(self, back: int) -> Call:
        return self.requests[-1 - back % min(len(self.requests), 12)]

    def _say(self, request: Call, connection: int) -> None:
        message = msgspec.structs.replace(request, id=self.desk.new_id())
        self.asked[message.id] = request.call
        for heard in self.desk.call(Address(f"{connection % 2}".encode()), message):
            self._heard(heard)
        self._after_event()

    def _after_event(self) -> None:
        for connection in map(Address, (b"0", b"1")):
            for message in self.desk.heard(connection):
                self._heard(message)
        for record in self.desk.books.unfinished:
            line = self.complete[record.lane]
            if record.state is not CallState.RECEIVING and record.id not in line:
                line.append(record.id)
        started = self.desk.started
        assert len(set(started)) == len(started), "a call ran twice"
        assert not self.cancelled & set(started), "a call ran that had been given up"
        self._check_order()
        self._check_memory()

    def _heard(self, message: Message) -> None:
        call = self.asked[message.id]
        match message:
            case Granted():
                self.chunks.extend(chunk_headers(message, self.sizes[call]))
            case Returned() | Raised():
                assert call in self.desk.started
                answer = msgspec.structs.replace(self.answers[call], id=message.id)
                assert message == answer, "another answer than the recorded one"
            case Refused(code=RefusalCode.CANCELLED):
                assert call in self.cancelled
            case Refused(code=RefusalCode.FORGOTTEN):
                assert call not in {record.id for record in self.desk.books.unfinished}

    def _check_order(self) -> None:
        for line in self.complete.values():
            places = [line.index(call) for call in self.desk.started if call in line]
            assert places == sorted(places), "a call overtook another one of its lane"

    def _check_memory(self) -> None:
        over = self.desk.books._over._calls
        assert len(over) <= 6
        sizes = [
            len(call.answer.traceback)
            if isinstance(call.answer, Raised)
            else call.answer.value.nbytes
            if isinstance(call.answer, Returned) and call.answer.value is not None
            else 0
            for call in over.values()
        ]
        assert len(over) == 1 or sum(sizes) <= MAX_ANSWERS
        assert self.desk.books._over._bytes == sum(sizes)

    def finish(self) -> None:
        """Everything that is under way arrives or is given up; then nothing is held any more."""
        try:
            self.desk.has_memory = True
            self.bring_all()
            for _ in range(100):
                self.end(0, 0)
            self.desk.pass_time(LEASE_S)
            self._after_event()
            assert list(self.desk.books.unfinished) == []
            assert self.desk.memory == {}
            assert self.desk.books.next_deadline() is None
            for request in self.requests:
                self._say(request, 1)
                self.bring_all()
                while self.desk.runs:
                    self.end(0, 1)
            assert set(self.desk.started) == set(self.answers)
        finally:
            self._patches.undo()
