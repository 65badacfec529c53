"""Requests and answers over the daemon's control endpoint.

Every request is repeated until it is answered: a lost answer, a lost connection and a restarted daemon all end
the same way, because the daemon answers a repeat with what it answered the first time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Iterator

import zmq
import zmq.asyncio

from forebay.shm import this_peer
from forebay.wire import (
    HEARTBEAT_MS,
    HEARTBEAT_TIMEOUT_MS,
    PROTOCOL_VERSION,
    BrokenError,
    ClosedError,
    ControlReply,
    ControlRequest,
    Goodbye,
    Hello,
    ProtocolError,
    RefusalCode,
    Refused,
    RefusedError,
    VersionMismatchError,
    WaitTimeoutError,
    Welcome,
    decode_control_reply,
    encode_message,
)

log = logging.getLogger("forebay.client")

_LINGER_MS = 1_000


class Exchange:
    """One request and the answers to it; made by `ControlLink.exchange`."""

    def __init__(self, link: ControlLink, request: ControlRequest) -> None:
        self._link = link
        self.request = request
        self.replies: asyncio.Queue[ControlReply | None] = asyncio.Queue()

    async def next(self, deadline: float, what: str) -> ControlReply:
        """Waits for the next answer; repeats the request while there is none.

        Args:
            deadline: Monotonic second at which to give up.
            what: What is waited for, for the error.

        Raises:
            WaitTimeoutError: No answer in time.
            BrokenError: The daemon said goodbye.
            ClosedError: The client was closed.
        """
        while True:
            patience = min(self._link.retry_s, deadline - time.monotonic())
            if patience <= 0:
                raise WaitTimeoutError(
                    f"timed out waiting for {what}",
                    remedy=f"see what the daemon at {self._link.endpoint} does with: forebay status",
                )
            try:
                # Not wait_for: before Python 3.12 it loses a cancellation that comes together with the answer.
                async with asyncio.timeout(patience):
                    reply = await self.replies.get()
            except TimeoutError:
                await self._link.send(self.request)
                continue
            match reply:
                case Refused(code=RefusalCode.HELLO_FIRST):
                    await self._link.say_hello(deadline)
                    await self._link.send(self.request)
                case Goodbye(kept=True):
                    continue  # another daemon will adopt the pool, and the repeated request with it
                case None:
                    raise ClosedError(f"the staging client was closed while {what} was awaited")
                case Goodbye():
                    raise BrokenError(
                        f"the daemon at {self._link.endpoint} stopped; still awaited: {what}",
                        remedy="start it again, and stage again what it had not lent",
                    )
                case _:
                    return reply


class ControlLink:
    """A connection to a daemon's control endpoint, shared by any number of exchanges.

    Args:
        endpoint: Where the daemon listens.
        name: Of this client, for people.
        retry_s: Seconds without an answer after which a request is repeated.
    """

    def __init__(self, endpoint: str, *, name: str, retry_s: float) -> None:
        self.endpoint = endpoint
        self.retry_s = retry_s
        self.welcome: Welcome | None = None
        self._peer = this_peer(name)
        self._ids = itertools.count(1)
        self._exchanges: dict[int, Exchange] = {}
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.heartbeat_ivl = HEARTBEAT_MS
        self._socket.heartbeat_timeout = HEARTBEAT_TIMEOUT_MS
        self._socket.linger = _LINGER_MS
        self._reader: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def context(self) -> zmq.asyncio.Context:
        """The ZeroMQ context, for the data socket."""
        return self._context

    def new_id(self) -> int:
        """Returns an id for a request."""
        return next(self._ids)

    async def connect(self, timeout_s: float) -> Welcome:
        """Connects and says hello.

        Raises:
            WaitTimeoutError: Nobody answered; the message names address and setting.
            VersionMismatchError: The daemon speaks another version; the message names both.
        """
        try:
            self._socket.connect(self.endpoint)
        except zmq.ZMQError as error:
            raise BrokenError(
                f"control_endpoint {self.endpoint} cannot be used: {error.strerror}",
                remedy="set control_endpoint (FOREBAY_CONTROL_ENDPOINT) to the daemon's address",
            ) from error
        self._reader = asyncio.create_task(self._read(), name="forebay control reader")
        try:
            return await self.say_hello(time.monotonic() + timeout_s)
        except WaitTimeoutError as error:
            raise WaitTimeoutError(
                f"no daemon answered at control_endpoint {self.endpoint} within {timeout_s:g} s",
                remedy="start one (forebay serve), or set control_endpoint (FOREBAY_CONTROL_ENDPOINT) "
                "to its address",
            ) from error

    async def say_hello(self, deadline: float) -> Welcome:
        """Opens or re-opens the conversation; after a daemon restart the welcome has another epoch."""
        with self.exchange(Hello(id=self.new_id(), version=PROTOCOL_VERSION, peer=self._peer)) as hello:
            await self.send(hello.request)
            reply = await hello.next(deadline, f"the welcome of the daemon at {self.endpoint}")
        match reply:
            case Welcome(version=version) if version == PROTOCOL_VERSION:
                self.welcome = reply
                return reply
            case Welcome(version=version) | Refused(code=RefusalCode.VERSION, version=version):
                raise VersionMismatchError(
                    f"the daemon at {self.endpoint} speaks another protocol version",
                    got=version,
                    limit=PROTOCOL_VERSION,
                    remedy="run the same Forebay version on both sides",
                )
            case Refused(code=code, words=words):
                raise RefusedError(code, words)
            case _:
                raise ProtocolError("a hello was answered with something else", got=type(reply).__name__)

    @contextlib.contextmanager
    def exchange(self, request: ControlRequest) -> Iterator[Exchange]:
        """Opens an exchange: answers to the request's id go to it until the block ends."""
        self._check_open()
        exchange = self._exchanges[request.id] = Exchange(self, request)
        try:
            yield exchange
        finally:
            del self._exchanges[request.id]

    async def ask(self, request: ControlRequest, *, timeout_s: float, what: str) -> ControlReply:
        """Sends a request and returns its first answer; see `Exchange.next`."""
        if self.welcome is None:
            raise ClosedError("the staging client is not open", remedy="use it inside its async with block")
        with self.exchange(request) as exchange:
            await self.send(request)
            return await exchange.next(time.monotonic() + timeout_s, what)

    async def send(self, request: ControlRequest) -> None:
        """Sends a request once, if there is room: with a daemon that is away this long, its repeat will do."""
        self._check_open()
        with contextlib.suppress(zmq.Again):
            await self._socket.send(encode_message(request), zmq.NOBLOCK)

    def send_last(self, request: ControlRequest) -> None:
        """Sends a request whose answer nobody waits for, also while the calling task is being cancelled."""
        if self._closed:
            return
        with contextlib.suppress(zmq.Again):
            zmq.Socket.shadow(self._socket.underlying).send(encode_message(request), zmq.NOBLOCK)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the staging client is closed", remedy="use it inside its async with block")

    async def _read(self) -> None:
        while True:
            frame = await self._socket.recv()
            try:
                reply = decode_control_reply(frame)
            except ProtocolError as error:
                log.warning("unreadable_answer endpoint=%s reason=%s", self.endpoint, error)
                continue
            if isinstance(reply, Goodbye):
                for exchange in self._exchanges.values():
                    exchange.replies.put_nowait(reply)
            elif reply.id in self._exchanges:
                self._exchanges[reply.id].replies.put_nowait(reply)

    async def close(self) -> None:
        """Closes the connection; last messages get a second to leave."""
        if self._closed:
            return
        self._closed = True
        for exchange in self._exchanges.values():
            exchange.replies.put_nowait(None)
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        self._socket.close()
        await asyncio.to_thread(self._context.term)
