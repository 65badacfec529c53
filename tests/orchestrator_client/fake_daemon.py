"""A daemon that does what the test says: it answers, stays silent, or says something else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import zmq

from forebay.wire import (
    PROTOCOL_VERSION,
    ChunkHeader,
    ControlReply,
    ControlRequest,
    Granted,
    Hello,
    Limits,
    Message,
    MicroBatchState,
    Offer,
    Peer,
    Staged,
    Welcome,
    decode_control_request,
    encode_message,
)

PATIENCE_S = 60.0
LIMITS = Limits(chunk_bytes=4096, max_micro_batch_bytes=64 << 20, max_key_bytes=32, max_depth=8, max_leaves=100)
Handle = Callable[[ControlRequest], Iterable[ControlReply | bytes] | None]
M = TypeVar("M", bound=Message)


class FakeDaemon:
    """A ROUTER and a PULL socket on a thread, which hands every request to a function.

    Args:
        folder: For the sockets.
        handle: Returns the answers to a request; None for the usual one, a welcome to a hello and else silence.
        reads_data: Whether chunks are read off the data socket.
        endpoint: Of the control socket, if not one in the folder.
        data_endpoint: Of the data socket, if not one in the folder.
    """

    def __init__(
        self, folder: Path, handle: Handle, *, reads_data: bool = True, endpoint: str = "", data_endpoint: str = ""
    ) -> None:
        self.requests: list[ControlRequest] = []
        self.chunks: list[ChunkHeader] = []
        self._handle = handle
        self._reads_data = reads_data
        self._changed = threading.Condition()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.setsockopt(zmq.LINGER, 0)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.bind(endpoint or f"ipc://{folder}/control")
        self.endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._data = self._context.socket(zmq.PULL)
        self._data.rcvhwm = 1
        self._data.bind(data_endpoint or f"ipc://{folder}/data")
        self._data_endpoint = self._data.getsockopt_string(zmq.LAST_ENDPOINT)
        self._stop_here, self._stop_there = (self._context.socket(zmq.PAIR) for _ in range(2))
        self._stop_there.bind("inproc://stop")
        self._stop_here.connect("inproc://stop")
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        poller = zmq.Poller()
        for socket in (self._router, self._stop_there, *([self._data] if self._reads_data else [])):
            poller.register(socket, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._stop_there in ready:
                return
            if self._router in ready:
                routing, *frames = self._router.recv_multipart()
                for frame in frames:
                    self._take(routing, decode_control_request(frame))
            if self._data in ready:
                header, _ = self._data.recv_multipart()
                with self._changed:
                    self.chunks.append(ChunkHeader.unpack(header))
                    self._changed.notify_all()

    def _take(self, routing: bytes, request: ControlRequest) -> None:
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
        answers = self._handle(request)
        if answers is None:
            answers = [self.welcome(request)] if isinstance(request, Hello) else []
        for answer in answers:
            frame = answer if isinstance(answer, bytes) else encode_message(answer)
            self._router.send_multipart([routing, frame])

    def welcome(
        self, request: ControlRequest, *, version: int = PROTOCOL_VERSION, limits: Limits = LIMITS
    ) -> Welcome:
        """Returns the answer to a hello."""
        return Welcome(
            id=request.id,
            version=version,
            software="0",
            epoch="epoch",
            peer=Peer(name="fake", pid=1, host="here"),
            data_endpoint=self._data_endpoint,
            limits=limits,
        )

    def of_kind(self, kind: type[M]) -> list[M]:
        """Returns the requests of a kind that have come."""
        return [request for request in self.requests if isinstance(request, kind)]

    def wait_for(self, kind: type[M], count: int = 1) -> list[M]:
        """Waits until that many requests of a kind have come."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.of_kind(kind)) >= count, PATIENCE_S)
        assert came, f"{count} {kind.__name__} did not come within {PATIENCE_S} s; came {self.requests}"
        return self.of_kind(kind)

    def wait_for_chunks(self, count: int) -> list[ChunkHeader]:
        """Waits until that many chunks have come."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.chunks) >= count, PATIENCE_S)
        assert came, f"{count} chunks did not come within {PATIENCE_S} s; {len(self.chunks)} did"
        return list(self.chunks)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_here.send(b"")
        self._thread.join(PATIENCE_S)
        self._context.destroy(linger=0)


def grant(offer: Offer, *missing: tuple[int, int], token: int = 7, received_bytes: int = 0) -> Granted:
    """Grants slot 0."""
    return Granted(
        id=offer.id,
        attempt=offer.attempt,
        slot=0,
        generation=1,
        token=token,
        missing=missing,
        received_bytes=received_bytes,
        chunk_bytes=LIMITS.chunk_bytes,
    )


def staged(offer: Offer) -> Staged:
    return Staged(id=offer.id, state=MicroBatchState.READY)
