"""What a worker does with bytes that are none of its messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from forebay import TrainerHandle
from forebay.sockets.peer_answers import MESSAGE_BYTES
from forebay.trainer.call_record import Address
from forebay.wire import (
    CHUNK_HEADER_BYTES,
    PROTOCOL_VERSION,
    Call,
    CallId,
    CancelCall,
    ChunkFault,
    ChunkHeader,
    GetWorkerStatus,
    Hello,
    Message,
    PackedTree,
    Peer,
    RefusalCode,
    Refused,
    WorkerStatus,
    WorkerWelcome,
    decode_call_reply,
    encode_message,
)

from .processes import EVENT_S
from .served import Served, payload, see, talk

PEER = Peer(name="test", pid=1, host="here")


class Stranger:
    """Whoever has found the sockets."""

    def __init__(self, target: Served) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.setsockopt(zmq.LINGER, 0)
        self._control = self._context.socket(zmq.DEALER)
        self._control.connect(target.endpoint)
        self._data = self._context.socket(zmq.PUSH)
        self._data.connect(target.settings.worker_data_endpoint)

    def send(self, *frames: bytes) -> None:
        self._control.send_multipart(frames)

    def say(self, message: Message) -> Message:
        """Sends a message, and returns its answer."""
        self.send(encode_message(message))
        return self.hear()

    def hear(self) -> Message:
        assert self._control.poll(int(1000 * EVENT_S)), f"no answer within {EVENT_S} s"
        return decode_call_reply(self._control.recv())

    def hear_all(self) -> list[bytes]:
        """Returns the frames of a message."""
        assert self._control.poll(int(1000 * EVENT_S)), f"no answer within {EVENT_S} s"
        return self._control.recv_multipart()

    def push(self, *frames: bytes) -> None:
        self._data.send_multipart(frames)

    def status(self) -> WorkerStatus:
        status = self.say(GetWorkerStatus(id=7))
        assert isinstance(status, WorkerStatus)
        assert status.id == 7
        return status

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def target(shm_dir: Path) -> Iterator[Served]:
    with Served(shm_dir) as target:
        yield target


@pytest.fixture
def stranger(target: Served) -> Iterator[Stranger]:
    stranger = Stranger(target)
    yield stranger
    stranger.close()


def call_of(stranger: Stranger, **more: Any) -> Call:
    welcome = stranger.say(Hello(id=1, version=PROTOCOL_VERSION, peer=PEER))
    assert isinstance(welcome, WorkerWelcome)
    common: dict[str, Any] = {"epoch": welcome.epoch, "call": CallId("stranger", 1), "method": "update"}
    return Call(id=2, **({**common, "options": PackedTree(b"\x92\x91\xa1a\x90", b"")} | more))


def test_answers_of_one_turn_are_collected_no_further_than_a_message_may_be_long(
    target: Served, stranger: Stranger
) -> None:
    call_of(stranger)
    count = 1000
    stranger.send(*[b"no message"] * count)
    lengths: list[list[int]] = []
    while sum(len(message) for message in lengths) < count:
        lengths.append([len(frame) for frame in stranger.hear_all()])
    assert 1 < len(lengths) < count / 10
    assert all(sum(message) <= MESSAGE_BYTES for message in lengths)
    assert target.memory == 0


@pytest.mark.parametrize(
    "frames",
    [
        (b"",),
        (b"garbage",),
        (b"\xff" * 1000,),
        (b"\x91" * 100_000,),
        (b"\xdd\xff\xff\xff\xff",),
        (b"x", b"y"),
        (b"",) * 10,
        (encode_message(Refused(code=RefusalCode.VERSION, words="")),),
        (msgspec.msgpack.encode({"type": "call", "call": ["x" * 65, 1]}),),
    ],
    ids=lambda frames: f"{len(frames)} frames, {frames[0][:12]!r}",
)
def test_what_is_no_message_is_refused_counted_and_the_worker_serves_on(
    target: Served, stranger: Stranger, frames: tuple[bytes, ...]
) -> None:
    for _ in range(3):
        stranger.send(*frames)
        for _ in frames:
            answer = stranger.hear()
            assert isinstance(answer, Refused)
            assert answer.code is RefusalCode.BAD_REQUEST
    assert stranger.status().counters == {"refused_bad_request": 3 * len(frames)}
    assert talk(target.endpoint, lambda handle: handle.train_step(payload(1))).value["number"] == 1


@pytest.mark.usefixtures("target")
def test_garbage_beside_a_good_message_is_refused_and_the_good_one_is_answered(stranger: Stranger) -> None:
    stranger.send(b"", encode_message(Hello(id=3, version=PROTOCOL_VERSION, peer=PEER)), b"x")
    answers = [stranger.hear() for _ in range(3)]
    assert [type(answer) for answer in answers] == [Refused, WorkerWelcome, Refused]
    assert stranger.status().counters == {"refused_bad_request": 2}


def test_a_message_that_is_larger_than_any_may_be_cuts_its_connection_and_no_other(
    target: Served, stranger: Stranger
) -> None:
    async def beside(handle: TrainerHandle) -> None:
        stranger.send(bytes(16 << 20))
        assert await handle.update() == {"updates": 1}
        assert (await handle.status()).counters.get("refused_bad_request", 0) == 0

    talk(target.endpoint, beside)


def good_header(**more: int) -> bytes:
    fields = {"slot": 1, "span": 0, "length": 3, "generation": 0, "token": 1, "offset": 0, "checksum": 0}
    return ChunkHeader(**(fields | more)).pack()


@pytest.mark.parametrize(
    ("frames", "fault"),
    [
        ((b"garbage", b"body"), ChunkFault.MALFORMED),
        ((b"",), ChunkFault.MALFORMED),
        ((bytes(CHUNK_HEADER_BYTES), b"body"), ChunkFault.MALFORMED),
        ((good_header(),), ChunkFault.MALFORMED),
        ((good_header(), b"abc"), ChunkFault.NOT_GRANTED),
        ((good_header(slot=0xFFFFFFFF), bytes(1 << 20)), ChunkFault.NOT_GRANTED),
        ((good_header(length=0xFFFFFFFF, offset=1 << 63), b"abc"), ChunkFault.NOT_GRANTED),
        ((good_header(), *(b"x",) * 100), ChunkFault.NOT_GRANTED),
    ],
)
def test_chunks_for_nobody_are_counted_and_the_worker_serves_on(
    target: Served, stranger: Stranger, frames: tuple[bytes, ...], fault: ChunkFault
) -> None:
    for _ in range(3):
        stranger.push(*frames)

    async def run(handle: TrainerHandle) -> None:
        await see(handle, lambda status: status.counters.get(fault, 0) == 3, f"three times {fault}")
        assert (await handle.train_step(payload(1))).value["number"] == 1

    talk(target.endpoint, run)
    assert target.memory == 0


def leaf_of(length: int, nbytes: int) -> bytes:
    """Encodes the manifest of one leaf, whatever that declares."""
    return msgspec.msgpack.encode([["a"], [["uint8", [length], "raw", nbytes]]])


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"epoch": "another"}, RefusalCode.OTHER_RUN),
        ({"method": "absent"}, RefusalCode.UNKNOWN_METHOD),
        ({"payload": b"\xff garbage"}, RefusalCode.BAD_MANIFEST),
        ({"payload": leaf_of(1 << 62, 1)}, RefusalCode.BAD_MANIFEST),
        ({"payload": leaf_of(5, 1 << 62)}, RefusalCode.BAD_MANIFEST),
        ({"payload": leaf_of(1 << 40, 1 << 40)}, RefusalCode.BAD_MANIFEST),
    ],
)
def test_a_call_that_cannot_be_is_refused_and_takes_no_memory(
    target: Served, stranger: Stranger, more: dict[str, Any], code: RefusalCode
) -> None:
    request = call_of(stranger, **more)
    answer = stranger.say(request)
    assert isinstance(answer, Refused)
    assert (answer.code, answer.id) == (code, request.id)
    assert target.memory == 0
    assert stranger.status().counters == {f"refused_{code}": 1}


def test_another_protocol_version_is_refused_with_ours(stranger: Stranger) -> None:
    answer = stranger.say(Hello(id=5, version=77, peer=PEER))
    assert isinstance(answer, Refused)
    assert (answer.code, answer.id, answer.version) == (RefusalCode.VERSION, 5, PROTOCOL_VERSION)


def test_cancels_for_calls_that_never_come_take_bounded_memory(target: Served, stranger: Stranger) -> None:
    welcome = stranger.say(Hello(id=1, version=PROTOCOL_VERSION, peer=PEER))
    assert isinstance(welcome, WorkerWelcome)
    for number in range(1, 2000):
        stranger.send(encode_message(CancelCall(id=number, epoch=welcome.epoch, call=CallId(f"c{number}", 1))))
        stranger.hear()
    assert len(target.worker._books._over._calls) == target.settings.remembered_calls == 1024
    assert target.engine.updates == []


def test_more_callers_than_can_be_remembered_are_served(target: Served, stranger: Stranger) -> None:
    sockets = target.worker._sockets
    for number in range(5000):
        sockets.knows(Address(f"peer {number}".encode()))
    assert len(sockets._peers) == 4096
    assert isinstance(stranger.say(Hello(id=1, version=PROTOCOL_VERSION, peer=PEER)), WorkerWelcome)
