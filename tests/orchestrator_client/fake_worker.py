"""A trainer's worker that does what the test says: it answers, stays silent, or says something else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import zmq

from forebay import TrainerHandle
from forebay.sockets import Mailbox
from forebay.wire import (
    PROTOCOL_VERSION,
    Call,
    CallReply,
    CallRequest,
    ChunkHeader,
    Granted,
    Hello,
    Limits,
    Message,
    Peer,
    Raised,
    RefusalCode,
    Refused,
    Returned,
    StepTimes,
    WorkerState,
    WorkerWelcome,
    decode_call_request,
    decode_manifest,
    default_registry,
    encode_message,
    pack,
)

PATIENCE_S = 60.0
LIMITS = Limits(chunk_bytes=4096, max_manifest_bytes=64 << 10, max_micro_batch_bytes=1 << 20)
M = TypeVar("M", bound=Message)
T = TypeVar("T")
RETRY_S = 0.05
TREE = {"x": np.arange(5000, dtype=np.int32)}
Answers = Iterable[CallReply | bytes] | None
Handle = Callable[[CallRequest], Answers]


class FakeWorker:
    """A ROUTER and a PULL socket on a thread, which hands every request to a function.

    Args:
        folder: For the sockets.
        handle: Returns the answers to a request; None for the usual ones: a welcome to a hello, a grant of all
            to a call with a payload, and else silence.
        endpoint: Where it listens, if not in the folder.
        welcome: Fields of the welcome.
    """

    def __init__(
        self, folder: Path, handle: Handle = lambda _: None, *, endpoint: str = "", **welcome: Any
    ) -> None:
        self.requests: list[CallRequest] = []
        self.chunks: list[ChunkHeader] = []
        self.handle = handle
        self.welcome: dict[str, Any] = {"epoch": "epoch", "mode": "stage", "is_fed": False, **welcome}
        self._changed = threading.Condition()
        self._mailbox = Mailbox()
        self._is_over = False
        self._last: bytes = b""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.setsockopt(zmq.LINGER, 0)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.bind(endpoint or f"ipc://{folder}/worker")
        self.endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._data = self._context.socket(zmq.PULL)
        self._data.bind(f"ipc://{folder}/worker_data")
        self._data_endpoint = f"ipc://{folder}/worker_data"
        self._thread = threading.Thread(target=self._run, name="fake worker")
        self._thread.start()

    def _run(self) -> None:
        poller = zmq.Poller()
        for source in (self._router, self._data, self._mailbox.fileno()):
            poller.register(source, zmq.POLLIN)
        while not self._is_over:
            ready = dict(poller.poll())
            for event in self._mailbox.take():
                event()
            if self._router in ready:
                self._last, *frames = self._router.recv_multipart()
                for frame in frames:
                    self._take(decode_call_request(frame))
            if self._data in ready:
                header, _ = self._data.recv_multipart()
                with self._changed:
                    self.chunks.append(ChunkHeader.unpack(header))
                    self._changed.notify_all()

    def _take(self, request: CallRequest) -> None:
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
        answers = self.handle(request)
        for answer in self._usual(request) if answers is None else answers:
            self._send(answer)

    def _usual(self, request: CallRequest) -> Iterable[CallReply]:
        if isinstance(request, Hello):
            return [self.welcome_to(request)]
        if isinstance(request, Call) and request.payload:
            return [grant_of(request)]
        return []

    def _send(self, answer: CallReply | bytes) -> None:
        frame = answer if isinstance(answer, bytes) else encode_message(answer)
        self._router.send_multipart([self._last, frame])

    def welcome_to(self, hello: Message, **more: Any) -> WorkerWelcome:
        """Returns the answer to a hello."""
        common: dict[str, Any] = {
            "version": PROTOCOL_VERSION,
            "software": "0",
            "peer": Peer(name="fake", pid=1, host="here"),
            "data_endpoint": self._data_endpoint,
            "limits": LIMITS,
            "methods": ("fwd_bwd", "update"),
        }
        return WorkerWelcome(id=hello.id, **{**common, **self.welcome, **more})

    def say(self, message: CallReply) -> None:
        """Says something of its own accord, to whoever spoke last."""
        self._mailbox.post(lambda: self._send(message))

    def of_kind(self, kind: type[M]) -> list[M]:
        """Returns the requests of a kind that have come."""
        return [request for request in self.requests if isinstance(request, kind)]

    def wait_for(self, kind: type[M], count: int = 1) -> list[M]:
        """Waits until that many requests of a kind have come."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.of_kind(kind)) >= count, PATIENCE_S)
        assert came, f"{count} {kind.__name__} did not come within {PATIENCE_S} s; came {self.requests}"
        return self.of_kind(kind)

    def _end(self) -> None:
        self._is_over = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mailbox.post(self._end)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the fake worker did not end"
        self._context.destroy(linger=0)
        self._mailbox.close()


def grant_of(call: Call, token: int = 7) -> Granted:
    """Grants all of a call's payload."""
    spans = decode_manifest(call.payload, LIMITS).layout(LIMITS.chunk_bytes).spans
    return Granted(
        id=call.id,
        attempt="",
        slot=1,
        generation=0,
        token=token,
        missing=((0, len(spans)),) if spans else (),
        received_bytes=0,
        chunk_bytes=LIMITS.chunk_bytes,
    )


def returned(call: Message, value: Any = None, *, omitted: str = "", has_times: bool = False) -> Returned:
    """Makes the answer to a call."""
    times = StepTimes(key="k", is_staged=True, wait_s=1.0, dispatch_s=2.0, ready_s=3.0, idle_s=4.0)
    packed = None if omitted else pack(value, registry=default_registry, limits=LIMITS)
    return Returned(id=call.id, value=packed, omitted=omitted, times=times if has_times else None)


def handle_to(endpoint: str, **options: Any) -> TrainerHandle:
    return TrainerHandle(endpoint, **{"retry_s": RETRY_S, "timeout_s": PATIENCE_S, **options})


def talk(endpoint: str, what: Callable[[TrainerHandle], Awaitable[T]], **options: Any) -> T:
    async def run() -> T:
        async with handle_to(endpoint, **options) as handle:
            return await what(handle)

    return asyncio.run(run())


async def nothing(_: TrainerHandle) -> None:
    pass


def answering(*answers: Callable[[Call], CallReply | bytes]) -> Callable[[CallRequest], Answers]:
    """Answers each call, and all else as usual."""

    def handle(request: CallRequest) -> Answers:
        return [answer(request) for answer in answers] if isinstance(request, Call) else None

    return handle


def raised(call: Call, *, began: bool = True, **more: Any) -> Raised:
    fields: dict[str, Any] = {
        "kind": "KeyError",
        "words": "KeyError: 'x'",
        "traceback": "Traceback: here\n  there",
    }
    return Raised(id=call.id, began=began, state=WorkerState.FAILED, **(fields | more))


def refusing(code: RefusalCode, words: str = "because") -> Callable[[Call], Refused]:
    return lambda call: Refused(id=call.id, code=code, words=words)
