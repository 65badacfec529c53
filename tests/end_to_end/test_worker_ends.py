"""How a worker ends, who may be one, and what it does with bytes that are none of its messages."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from forebay import BrokenError, ClosedError, HeldError, Queued, TrainerHandle, TrainerWorker
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
    RefusedError,
    SettingError,
    UsageError,
    WorkerStatus,
    WorkerWelcome,
    decode_call_reply,
    encode_message,
)

from .processes import EVENT_S
from .served import Engine, Gate, Served, handle_to, payload, see, states, talk

PEER = Peer(name="test", pid=1, host="here")


# --- stop ---


def test_a_worker_that_stops_answers_what_runs_and_refuses_what_waits(shm_dir: Path) -> None:
    gate = Gate("the step")

    async def run(handle: TrainerHandle) -> None:
        running = asyncio.create_task(handle.train_step(payload(1)))
        await gate.reached()
        waiting = asyncio.create_task(handle.train_step(payload(2)))
        expected = ["fwd_bwd queued", "fwd_bwd running"]
        await see(handle, lambda status: sorted(states(status)) == expected, "a step that waits")
        served.worker.stop()
        with pytest.raises(RefusedError, match="shutting down") as caught:
            await waiting
        assert caught.value.code == RefusalCode.DRAINING
        assert (await handle.status()).draining
        with pytest.raises(RefusedError, match="shutting down"):
            await handle.update()
        gate.open()
        assert (await running).value["number"] == 1

    with Served(shm_dir, Engine(inside=lambda _: gate())) as served:
        talk(served.endpoint, run)
        served.thread.join(EVENT_S)
        assert not served.thread.is_alive(), "it serves on though nothing runs"
    assert served.engine.trained == [1]


def test_a_worker_that_has_nothing_to_do_stops_at_once(shm_dir: Path) -> None:
    with Served(shm_dir) as served:
        served.stop()
        served.stop()
        assert served.engine.trained == []


def test_a_worker_that_was_stopped_before_it_served_does_not_serve(shm_dir: Path) -> None:
    served = Served(shm_dir)
    served.worker.stop()
    with served:
        served.thread.join(EVENT_S)
        assert not served.thread.is_alive()


def test_the_drain_has_an_end_and_who_still_waits_hears_a_goodbye(shm_dir: Path) -> None:
    gate = Gate("the step")

    async def run(handle: TrainerHandle) -> None:
        task = asyncio.create_task(handle.train_step(payload(1)))
        await gate.reached()
        await asyncio.to_thread(served.stop)
        served.worker.close()
        with pytest.raises(
            BrokenError, match=r"the trainer worker at .* stopped; still awaited: the answer to fwd_b"
        ):
            await task
        gate.open()

    with Served(shm_dir, Engine(inside=lambda _: gate()), worker_drain_s=0.0) as served:
        talk(served.endpoint, run, retry_s=EVENT_S)


def test_a_goodbye_ends_every_wait_at_once(shm_dir: Path) -> None:
    gate = Gate("the methods")

    async def run(first: TrainerHandle) -> None:
        async with handle_to(served.endpoint, retry_s=EVENT_S) as second:
            tasks = [asyncio.create_task(handle.call("hold")) for handle in (first, second)]
            await gate.reached()
            await see(first, lambda status: len(status.calls) == 2, "two calls")
            await asyncio.to_thread(served.stop)
            served.worker.close()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(end) for end in ends} == {BrokenError, RefusedError}
        gate.open()

    with Served(shm_dir, methods={"hold": gate}, worker_drain_s=0.0) as served:
        talk(served.endpoint, run, retry_s=EVENT_S)


def test_closing_twice_is_as_good_as_once_and_nothing_is_left(shm_dir: Path) -> None:
    before = {thread.name for thread in threading.enumerate()}
    with Served(shm_dir) as served:
        talk(served.endpoint, lambda handle: handle.update())
        assert {path.name for path in shm_dir.iterdir()} == {
            "worker.sock",
            "worker.sock.lock",
            "worker_data.sock",
            "worker_data.sock.lock",
        }
        served.stop()
        for _ in range(3):
            served.worker.close()
        served.worker.stop()
        with pytest.raises(ClosedError, match="the worker is closed; make another one"):
            served.worker.serve()
    assert list(shm_dir.iterdir()) == []
    assert {thread.name for thread in threading.enumerate()} <= before


def test_a_worker_is_a_context_manager_that_closes_itself(shm_dir: Path) -> None:
    served = Served(shm_dir)
    with pytest.raises(RuntimeError, match="in the block"), served.worker:
        raise RuntimeError("in the block")
    assert list(shm_dir.iterdir()) == []
    served.staged.close()


def test_after_a_worker_another_one_may_serve_the_same_engine(shm_dir: Path) -> None:
    with Served(shm_dir) as served:
        talk(served.endpoint, lambda handle: handle.train_step(payload(1), "k"))
        served.stop()
        served.worker.close()
        with TrainerWorker(served.staged) as second:
            thread = threading.Thread(target=second.serve)
            thread.start()
            talk(second.endpoint, lambda handle: handle.train_step(payload(2)))
            second.stop()
            thread.join(EVENT_S)
    assert served.engine.trained == [1, 2]


def test_calls_of_one_run_are_refused_by_the_next_and_those_after_them_are_for_that(shm_dir: Path) -> None:
    async def run(handle: TrainerHandle) -> None:
        await handle.update()
        await asyncio.to_thread(first.stop)
        # As if it had been killed: without a goodbye.
        first.worker._sockets._peers.clear()
        first.worker.close()
        with Served(shm_dir) as second:
            with pytest.raises(BrokenError, match="was restarted; whether update had run is not known"):
                await handle.update()
            assert await handle.update() == {"updates": 1}
            assert second.counters["refused_other_run"] >= 1

    with Served(shm_dir) as first:
        talk(first.endpoint, run)


# --- endpoints ---


@pytest.mark.parametrize("name", ["worker_endpoint", "worker_data_endpoint"])
def test_an_endpoint_that_a_worker_holds_is_named_with_its_holder(shm_dir: Path, name: str) -> None:
    (shm_dir / "other").mkdir()
    with Served(shm_dir) as served:
        taken = getattr(served.settings, name)
        before = sorted(shm_dir.rglob("*"))
        settings: dict[str, Any] = {name: taken}
        with pytest.raises(HeldError) as caught:
            Served(shm_dir / "other", **settings)
        assert f"{taken.removeprefix('ipc://')}.lock is held by trainer pid {os.getpid()}" in str(caught.value)
        assert sorted(shm_dir.rglob("*")) == before
        assert talk(served.endpoint, lambda handle: handle.status()).state == "ready"


def test_a_port_that_a_worker_holds_is_named_with_its_holder(shm_dir: Path) -> None:
    ports: dict[str, Any] = {"worker_endpoint": "tcp://127.0.0.1:*", "worker_data_endpoint": "tcp://127.0.0.1:*"}
    with Served(shm_dir, **ports) as served:
        with pytest.raises(
            HeldError, match=f"worker_endpoint {served.endpoint} is held by trainer pid {os.getpid()}"
        ):
            Served(shm_dir, **(ports | {"worker_endpoint": served.endpoint}))
        assert talk(served.endpoint, lambda handle: handle.train_step(payload(1))).value["number"] == 1


@pytest.mark.parametrize("address", ["nonsense", "inproc://x"])
def test_what_is_no_address_is_a_wrong_setting(shm_dir: Path, address: str) -> None:
    for name in ("worker_endpoint", "worker_data_endpoint"):
        settings: dict[str, Any] = {name: address}
        with pytest.raises(SettingError, match=name):
            Served(shm_dir, **settings)
    assert list(shm_dir.iterdir()) == []


def test_only_a_staged_engine_is_served() -> None:
    with pytest.raises(UsageError, match=r"got Engine; limit a forebay\.StagedEngine"):
        TrainerWorker(Engine())  # type: ignore[arg-type]


def test_a_worker_says_where_it_is_and_what_it_has(shm_dir: Path) -> None:
    with Served(shm_dir) as served:
        assert repr(served.worker) == f"TrainerWorker({served.endpoint!r}, ready, 5 methods)"


# --- hostile ---


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
        (encode_message(Hello(version=PROTOCOL_VERSION, peer=PEER)), b""),
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
        answer = stranger.hear()
        assert isinstance(answer, Refused)
        assert answer.code is RefusalCode.BAD_REQUEST
    assert stranger.status().counters == {"refused_bad_request": 3}
    assert talk(target.endpoint, lambda handle: handle.train_step(payload(1))).value["number"] == 1


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
        ((good_header(),), ChunkFault.NOT_GRANTED),
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
        sockets.knows(f"peer {number}".encode())
    assert len(sockets._peers) == 4096
    assert isinstance(stranger.say(Hello(id=1, version=PROTOCOL_VERSION, peer=PEER)), WorkerWelcome)


def test_an_engine_and_its_queue_stay_their_owners(shm_dir: Path) -> None:
    with Served(shm_dir) as served:
        served.stop()
        served.worker.close()
        assert isinstance(served.staged.stage_batch(payload(1), key="k"), Queued)
        assert served.staged.fwd_bwd(stage_key="k")["number"] == 1


def test_a_worker_that_cannot_be_made_leaves_nothing(shm_dir: Path) -> None:
    (shm_dir / "worker_data.sock").mkdir()
    before = {thread.name for thread in threading.enumerate()}
    with pytest.raises(SettingError, match="worker_data_endpoint"):
        Served(shm_dir)
    assert [path.name for path in shm_dir.iterdir()] == ["worker_data.sock"]
    assert {thread.name for thread in threading.enumerate()} <= before
