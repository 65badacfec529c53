"""A middle man between handles and a worker, who loses, repeats, delays and damages what a test chooses."""

from __future__ import annotations

import dataclasses
import enum
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec
import zmq

from forebay.sockets import Mailbox
from forebay.wire import (
    ChunkHeader,
    Message,
    WorkerWelcome,
    decode_call_reply,
    decode_call_request,
    encode_message,
)

from .processes import EVENT_S

M = TypeVar("M", bound=Message)


class Fate(enum.Enum):
    """What becomes of a message."""

    PASS = enum.auto()
    LOSE = enum.auto()
    TWICE = enum.auto()
    HOLD = enum.auto()
    """Until `LossyRouter.release`."""
    PASS_AND_CUT = enum.auto()
    """It arrives; then the connection is lost, with all that was on its way back."""


COPIES = {Fate.PASS: 1, Fate.LOSE: 0, Fate.TWICE: 2, Fate.HOLD: 0, Fate.PASS_AND_CUT: 1}
Decide = Callable[[Message], Fate]
Damage = Callable[[ChunkHeader, bytes], list[bytes]]
"""Returns the bodies that a chunk arrives with: none, one or several, whole or not."""


def pass_on(_: Message) -> Fate:
    return Fate.PASS


def first(kind: type[Message], fate: Fate, count: int = 1) -> Decide:
    """Decides about the first messages of a kind; all others pass."""
    met: list[Message] = []

    def decide(message: Message) -> Fate:
        if not isinstance(message, kind) or len(met) >= count:
            return Fate.PASS
        met.append(message)
        return fate

    return decide


@dataclasses.dataclass
class Held:
    """A message that stands still."""

    client: bytes
    message: Message
    is_request: bool


class LossyRouter:
    """Stands between; a context manager.

    Args:
        worker_endpoint: Of the worker.
        folder: For its own sockets.
        decide: Decides about each message, requests and answers.
        damage: Decides about each chunk; default all arrive whole.

    Attributes:
        endpoint: Where handles connect.
        seen: All messages that came by, in order, whatever became of them.
    """

    def __init__(
        self, worker_endpoint: str, folder: Path, decide: Decide = pass_on, damage: Damage | None = None
    ) -> None:
        self.decide = decide
        self.damage = damage
        self.seen: list[Message] = []
        self.chunks: list[ChunkHeader] = []
        self._worker_endpoint = worker_endpoint
        self._changed = threading.Condition()
        self._mailbox = Mailbox()
        self._held: list[Held] = []
        self._is_over = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.setsockopt(zmq.LINGER, 0)
        self._front = self._context.socket(zmq.ROUTER)
        self._data = self._context.socket(zmq.PULL)
        self._data_on = self._context.socket(zmq.PUSH)
        self._backs: dict[bytes, zmq.Socket[bytes]] = {}
        self.endpoint = f"ipc://{folder}/lossy.sock"
        self._data_endpoint = f"ipc://{folder}/lossy_data.sock"
        self._front.bind(self.endpoint)
        self._data.bind(self._data_endpoint)
        self._thread = threading.Thread(target=self._run, name="lossy router")

    # What a test asks for.

    def release(self) -> None:
        """Lets go of all that it holds, oldest first."""
        self._mailbox.post(self._let_go)

    def wait_for(self, kind: type[M], count: int = 1) -> list[M]:
        """Waits until so many messages of a kind have come by."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.of_kind(kind)) >= count, EVENT_S)
        assert came, f"{count} {kind.__name__} did not come within {EVENT_S} s; came {self.seen}"
        return self.of_kind(kind)

    def of_kind(self, kind: type[M]) -> list[M]:
        return [message for message in self.seen if isinstance(message, kind)]

    # The thread.

    def _run(self) -> None:
        while not self._is_over:
            poller = zmq.Poller()
            backs = dict(self._backs)
            for source in (self._front, self._data, *backs.values(), self._mailbox.fileno()):
                poller.register(source, zmq.POLLIN)
            ready = dict(poller.poll())
            for event in self._mailbox.take():
                event()
            if self._front in ready:
                self._take(*self._front.recv_multipart())
            if self._data in ready:
                self._pass_chunk(*self._data.recv_multipart())
            for client, back in backs.items():
                if back in ready and not back.closed:
                    self._route(Held(client, self._rewritten(decode_call_reply(back.recv())), is_request=False))

    def _take(self, client: bytes, *frames: bytes) -> None:
        for frame in frames:
            self._route(Held(client, decode_call_request(frame), is_request=True))

    def _rewritten(self, reply: Message) -> Message:
        if not isinstance(reply, WorkerWelcome):
            return reply
        self._data_on.connect(reply.data_endpoint)
        return msgspec.structs.replace(reply, data_endpoint=self._data_endpoint)

    def _route(self, held: Held) -> None:
        fate = self.decide(held.message)
        for _ in range(COPIES[fate]):
            self._deliver(held)
        if fate is Fate.HOLD:
            self._held.append(held)
        if fate is Fate.PASS_AND_CUT and held.client in self._backs:
            self._backs.pop(held.client).close(linger=1000)
        with self._changed:
            self.seen.append(held.message)
            self._changed.notify_all()

    def _deliver(self, held: Held) -> None:
        frame = encode_message(held.message)
        if not held.is_request:
            self._front.send_multipart([held.client, frame])
            return
        if held.client not in self._backs:
            back = self._backs[held.client] = self._context.socket(zmq.DEALER)
            back.connect(self._worker_endpoint)
        self._backs[held.client].send(frame)

    def _let_go(self) -> None:
        held, self._held = self._held, []
        for each in held:
            self._deliver(each)

    def _pass_chunk(self, header: bytes, body: bytes) -> None:
        unpacked = ChunkHeader.unpack(header)
        for damaged in [body] if self.damage is None else self.damage(unpacked, body):
            self._data_on.send_multipart([header, damaged])
        with self._changed:
            self.chunks.append(unpacked)
            self._changed.notify_all()

    def _end(self) -> None:
        self._is_over = True

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mailbox.post(self._end)
        self._thread.join(EVENT_S)
        assert not self._thread.is_alive(), "the middle man did not end"
        self._context.destroy(linger=0)
        self._mailbox.close()
