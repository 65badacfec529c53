"""A data endpoint with threads of its own: all arrives, once, and its end leaves nothing behind."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from forebay.sockets import BulkReceiver
from forebay.wire import (
    BITSHUFFLE_LZ4,
    RAW,
    SHUFFLE_LZ4,
    ChunkFault,
    ChunkHeader,
    HeldError,
    HostError,
    Peer,
    SettingError,
)

from .bulk_memory import LENGTH, SPANS, Memory

PEER = Peer(name="holder", pid=4711, host="there")
several_threads = pytest.mark.parametrize("threads", [1, 3])
Codecs = tuple[str, ...]


def receiver_of(address: str, memory: Memory, threads: int = 1) -> BulkReceiver:
    return BulkReceiver(
        address,
        setting="data_endpoint",
        peer=PEER,
        chunk_bytes=LENGTH,
        receive_chunks=8,
        incoming=memory.incoming,
        target=memory.target,
        complete=memory.complete,
        failed=memory.failed,
        threads=threads,
    )


@contextlib.contextmanager
def receiving(address: str, memory: Memory, threads: int = 1) -> Iterator[BulkReceiver]:
    receiver = receiver_of(address, memory, threads)
    try:
        yield receiver
    finally:
        receiver.close()


@contextlib.contextmanager
def senders(address: str, count: int = 1) -> Iterator[list[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sockets = [context.socket(zmq.PUSH) for _ in range(count)]
    try:
        for socket in sockets:
            socket.connect(address)
        yield sockets
    finally:
        context.destroy(linger=0)


def threads_of_receivers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("forebay-chunks")]


@pytest.fixture
def address(shm_dir: Path) -> str:
    return f"ipc://{shm_dir}/data.sock"


def send_all(memory: Memory, sockets: list[zmq.Socket[bytes]], codecs: Codecs = (RAW,)) -> None:
    for span in range(SPANS):
        sockets[span % len(sockets)].send_multipart(memory.chunk(span, codecs[span % len(codecs)]))


@several_threads
@pytest.mark.parametrize(
    "codecs", [(RAW,), (SHUFFLE_LZ4,), (BITSHUFFLE_LZ4,), (BITSHUFFLE_LZ4, RAW, SHUFFLE_LZ4)], ids=str
)
def test_chunks_of_several_senders_arrive_bit_for_bit_and_are_complete_once(
    address: str, threads: int, codecs: Codecs
) -> None:
    memory = Memory()
    with receiving(address, memory, threads) as receiver, senders(receiver.address, 4) as sockets:
        send_all(memory, sockets, codecs)
        memory.wait_until_complete()
    assert memory.body == memory.sent
    assert memory.completed == [memory.arrivals]
    assert (memory.incoming.faults(), memory.failures) == ({}, [])
    assert not memory.arrivals.is_written_to
    assert memory.threads == {"forebay-chunks"}


@several_threads
def test_garbage_in_between_is_counted_and_nothing_is_lost(address: str, threads: int) -> None:
    memory = Memory()
    # Each on a span of its own: several threads may have them at once.
    headers, data = zip(*(memory.chunk(span) for span in range(4)), strict=True)
    encoded = [memory.chunk(span, BITSHUFFLE_LZ4) for span in (4, 5)]
    garbage = {
        ChunkFault.MALFORMED: [[b""], [b"x" * 56, data[0]], [headers[0]], [b"a", b"b", b"c"]],
        ChunkFault.NOT_GRANTED: [[ChunkHeader(9, 0, LENGTH, 1, 2, 0, 0).pack(), data[0]]],
        ChunkFault.WRONG_CHECKSUM: [[headers[1], bytes(LENGTH)]],
        ChunkFault.WRONG_LENGTH: [[headers[2], data[2][1:]], [headers[3], data[3], b"more"]],
        ChunkFault.DAMAGED: [[encoded[0][0], encoded[0][1][:-1]], [encoded[1][0], data[1]]],
    }
    count = sum(map(len, garbage.values()))
    with receiving(address, memory, threads) as receiver, senders(receiver.address) as [socket]:
        for frames in (frames for kind in garbage.values() for frames in kind):
            socket.send_multipart(frames)
        # Else a good chunk might come to a span whose bad one is being written.
        memory.incoming.wait_for_thrown(count)
        assert memory.arrivals.received_bytes == 0
        send_all(memory, [socket])
        memory.wait_until_complete()
    assert memory.incoming.faults() == {fault: len(kind) for fault, kind in garbage.items()}
    assert memory.body == memory.sent
    assert memory.completed == [memory.arrivals]


@several_threads
def test_of_chunks_that_come_twice_from_different_senders_one_counts(address: str, threads: int) -> None:
    memory = Memory()
    with receiving(address, memory, threads) as receiver, senders(receiver.address, 2) as sockets:
        for span in range(SPANS):
            for socket in sockets:
                socket.send_multipart(memory.chunk(span))
        memory.incoming.wait_for_thrown(SPANS)
        memory.wait_until_complete()
    assert memory.incoming.faults() == {ChunkFault.REPEATED: SPANS}
    assert memory.body == memory.sent
    assert memory.completed == [memory.arrivals]


@several_threads
def test_its_end_leaves_neither_threads_nor_files_and_the_address_can_be_had_again(
    address: str, shm_dir: Path, threads: int
) -> None:
    for _ in range(3):
        memory = Memory()
        with receiving(address, memory, threads) as receiver, senders(receiver.address) as sockets:
            assert len(threads_of_receivers()) == threads + (threads > 1)
            assert sorted(path.name for path in shm_dir.iterdir()) == ["data.sock", "data.sock.lock"]
            send_all(memory, sockets)
            memory.wait_until_complete()
        assert threads_of_receivers() == []
        assert list(shm_dir.iterdir()) == []
        receiver.close()
        assert memory.body == memory.sent


@several_threads
def test_it_ends_in_the_middle_of_what_is_sent(address: str, shm_dir: Path, threads: int) -> None:
    memory = Memory()
    with receiving(address, memory, threads) as receiver, senders(receiver.address, 3) as sockets:
        for span in range(SPANS - 1):
            sockets[span % 3].send_multipart(memory.chunk(span))
        receiver.close()
        assert not memory.arrivals.is_written_to
    assert (memory.completed, memory.failures) == ([], [])
    assert (threads_of_receivers(), list(shm_dir.iterdir())) == ([], [])


@several_threads
def test_an_error_of_ours_is_told_once_and_holds_no_slot(address: str, shm_dir: Path, threads: int) -> None:
    memory = Memory()
    error = RuntimeError("no such slot")

    def target(_: ChunkHeader) -> memoryview | None:
        raise error

    memory.target = target  # type: ignore[assignment,method-assign]
    with receiving(address, memory, threads) as receiver, senders(receiver.address) as [socket]:
        socket.send_multipart(memory.chunk(0))
        memory.wait_until(lambda: bool(memory.failures), "the failure to be told")
    assert (memory.failures, memory.completed) == ([error], [])
    assert not memory.arrivals.is_written_to, "whoever wants the slot would wait for ever"
    assert (threads_of_receivers(), list(shm_dir.iterdir())) == ([], [])


def test_an_address_that_is_held_is_refused_and_its_holder_goes_on(address: str, shm_dir: Path) -> None:
    memory, other = Memory(), Memory()
    with receiving(address, memory) as receiver, senders(address) as sockets:
        before = (threads_of_receivers(), sorted(shm_dir.iterdir()))
        with pytest.raises(HeldError, match=r"data\.sock.* is held by holder pid 4711 on there"):
            receiver_of(address, other, 3)
        assert (threads_of_receivers(), sorted(shm_dir.iterdir())) == before
        send_all(memory, sockets)
        memory.wait_until_complete()
    assert memory.body == memory.sent
    assert repr(receiver) == f"BulkReceiver({address!r}, 1 threads)"


@several_threads
def test_a_port_that_is_held_is_refused_and_can_be_had_once_it_is_free(threads: int) -> None:
    memory = Memory()
    with receiving("tcp://127.0.0.1:*", memory, threads) as receiver:
        with pytest.raises(HeldError, match=r"data_endpoint tcp://127\.0\.0\.1:\d+ is held by"):
            receiver_of(receiver.address, Memory(), threads)
        assert len(threads_of_receivers()) == threads + (threads > 1)
    with receiving(receiver.address, memory, threads), senders(receiver.address) as sockets:
        send_all(memory, sockets)
        memory.wait_until_complete()
    assert memory.body == memory.sent


@pytest.mark.parametrize(
    ("address", "kind"),
    [("ipc:///dev/shm/no/such/folder/data", HostError), ("inproc://data", SettingError), ("", SettingError)],
)
def test_an_address_that_cannot_be_had_leaves_no_thread(address: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="data_endpoint"):
        receiver_of(address, Memory())
    assert threads_of_receivers() == []
