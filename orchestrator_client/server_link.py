"""Requests and answers over the endpoint of a server: a daemon, or a trainer's worker.

Every request is repeated until it is answered: a lost answer, a lost connection and a restarted server all end the
same way, because a server answers a repeat with what it answered the first time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterator

import zmq

from forebay.shm import this_peer
from forebay.sockets import LOOK_S, ClientKeys, Finding, Who, ping, tell, why_silent
from forebay.wire import (
    CONTROL_HEARTBEAT_TIMEOUT_MS,
    MAX_FRAMES,
    PROTOCOL_VERSION,
    BrokenError,
    ClosedError,
    Event,
    ForebayError,
    Goodbye,
    Hello,
    Message,
    ProtocolError,
    RefusalCode,
    Refused,
    RefusedError,
    VersionMismatchError,
    WaitTimeoutError,
    Welcome,
    encode_message,
    words_of,
)

from .closing import in_own_thread
from .exchange import Exchange
from .handshakes import Handshakes
from .remote_errors import unexpected
from .server_kind import ServerKind
from .standstill import Standstill

log = logging.getLogger("forebay.client")

_LINGER_MS = 1_000
_MESSAGES_PER_TURN = 64
_LOOK_MARGIN = 1.5
_NOT_KNOWN = Finding(Who.NOBODY)


class ServerLink:
    """A connection to a server, shared by any number of exchanges.

    Args:
        kind: What the server is.
        endpoint: Where it listens.
        name: Of this client, for people.
        retry_s: Seconds without an answer after which a request is repeated.
        silence_s: Seconds in which repeats are not answered, after which the server is taken to be gone; only
            where it answers them at once.
        keys: For a tcp endpoint; None where the server has none.

    Attributes:
        words_heard: Messages that came from the server.
    """

    def __init__(
        self,
        kind: ServerKind,
        endpoint: str,
        *,
        name: str,
        retry_s: float,
        silence_s: float = 30.0,
        keys: ClientKeys | None = None,
    ) -> None:
        self.kind = kind
        self.endpoint = endpoint
        self.retry_s = retry_s
        self.silence_s = silence_s
        self.words_heard = 0
        self._seems_gone = False
        self.welcome: Welcome | None = None
        self._peer = this_peer(name)
        self._ids = itertools.count(1)
        self._exchanges: dict[int, Exchange] = {}
        self._outbox: list[bytes] = []
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        ping(self._socket, timeout_ms=CONTROL_HEARTBEAT_TIMEOUT_MS)
        self._socket.linger = _LINGER_MS
        if keys is not None:
            keys.use(self._socket, endpoint)
        self._handshakes = Handshakes(self._socket, endpoint, kind, keys=keys)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._talks = 0
        self._nobody_talks = asyncio.Event()
        self._nobody_talks.set()
        self._is_ending = False
        self._closed = False

    def standstill(self) -> Standstill:
        """Returns what tells when a sending to this server has come to a standstill."""
        return Standstill(self.retry_s, self.silence_s)

    def new_id(self) -> int:
        """Returns an id for a request."""
        return next(self._ids)

    async def connect(self, timeout_s: float) -> Welcome:
        """Connects and says hello.

        Raises:
            WaitTimeoutError: Nobody answered; the message names address and setting, or what to check of the keys.
            RefusedError: The server does not know this client's key.
            VersionMismatchError: The server speaks another version; the message names both.
            ProtocolError: Somebody else answers there.
        """
        try:
            self._socket.connect(self.endpoint)
        except zmq.ZMQError as error:
            raise BrokenError(
                f"{self.kind.setting} {self.endpoint} cannot be used: {error.strerror}",
                remedy=self.kind.address_remedy,
            ) from error
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.FD, self._receive)
        self._loop.add_reader(self._handshakes.fileno(), self._look_at_handshakes)
        # ZeroMQ's descriptor tells of what comes after the last time that there was nothing.
        self._look_at_handshakes()
        look = asyncio.create_task(self._look_in_time(timeout_s), name="forebay look")
        try:
            return await self.say_hello(time.monotonic() + timeout_s)
        except WaitTimeoutError:
            found = look.result() if look.done() else _NOT_KNOWN
            why = "" if self._handshakes.is_certain else found.words
            raise WaitTimeoutError(
                f"no {self.kind.name} answered at {self.kind.setting} {self.endpoint} within {timeout_s:g} s"
                + (why and f": {why}"),
                remedy=(not why and self._handshakes.remedy)
                or found.remedy(self.kind.start, self.kind.address_remedy),
            ) from None
        finally:
            look.cancel()

    async def _look_in_time(self, timeout_s: float) -> Finding:
        """Looks why nobody answers, so that it is known when the time is over, not some time later."""
        await asyncio.sleep(max(timeout_s / 2, timeout_s - _LOOK_MARGIN * LOOK_S))
        try:
            return await in_own_thread(why_silent, self.endpoint)
        except Exception as error:  # noqa: BLE001 - that nobody answered is to be told, whatever is wrong with a look
            tell(log, logging.INFO, Event.LOOK_FAILED, endpoint=self.endpoint, reason=words_of(error))
            return _NOT_KNOWN

    async def say_hello(self, deadline: float) -> Welcome:
        """Opens or re-opens the conversation; after a restart of the server the welcome has another epoch."""
        with self.exchange(Hello(id=self.new_id(), version=PROTOCOL_VERSION, peer=self._peer)) as hello:
            self.send(hello.request)
            reply = await hello.next(deadline, f"the welcome of the {self.kind.name} at {self.endpoint}")
        match reply:
            case Welcome(version=version) if version == PROTOCOL_VERSION:
                self.welcome = reply
                return reply
            case Welcome(version=version) | Refused(code=RefusalCode.VERSION, version=version):
                raise VersionMismatchError(
                    f"the {self.kind.name} at {self.endpoint} speaks another protocol version",
                    got=version,
                    limit=PROTOCOL_VERSION,
                    remedy="run the same Forebay version on both sides",
                )
            case _:
                raise unexpected("hello", reply)

    @contextlib.contextmanager
    def talk(self) -> Iterator[None]:
        """Wraps all that is said about one thing, up to a last word when it fails; `close` waits for that."""
        self._check_open()
        self._talks += 1
        self._nobody_talks.clear()
        try:
            yield
        finally:
            self._talks -= 1
            if not self._talks:
                self._nobody_talks.set()

    @contextlib.contextmanager
    def exchange(
        self,
        request: Message,
        *,
        repeats_are_answered: bool = True,
        renewed: Callable[[], Message] | None = None,
    ) -> Iterator[Exchange]:
        """Opens an exchange: answers to the request's id go to it until the block ends.

        Args:
            request: What is asked.
            repeats_are_answered: Whether the server answers each repeat at once, if only to say that it goes on.
            renewed: Returns the request as it is to be repeated; default as it is.
        """
        self._check_open()
        if self._handshakes.was_refused:
            raise self._not_admitted()
        exchange = self._exchanges[request.id] = Exchange(
            self, request, repeats_are_answered=repeats_are_answered, renewed=renewed
        )
        try:
            yield exchange
        finally:
            del self._exchanges[request.id]

    async def ask(
        self, request: Message, *, timeout_s: float, what: str, repeats_are_answered: bool = True
    ) -> Message:
        """Sends a request and returns its first answer; see `exchange` and `Exchange.next`."""
        if self.welcome is None:
            raise ClosedError("the client is not open", remedy="use it inside its async with block")
        with self.exchange(request, repeats_are_answered=repeats_are_answered) as exchange:
            self.send(request)
            return await exchange.next(time.monotonic() + timeout_s, what)

    def send(self, request: Message) -> None:
        """Sends a request once, with all others of this turn of the loop."""
        self._check_open()
        self.send_last(request)

    def send_last(self, request: Message) -> None:
        """Sends a request whose answer nobody waits for, also while the client ends."""
        if self._closed or self._loop is None:
            return
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(encode_message(request))

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        if not outbox or self._closed:
            return
        # No room: with a server that is away this long, its repeat will do.
        with contextlib.suppress(zmq.Again):
            for first in range(0, len(outbox), MAX_FRAMES):
                self._socket.send_multipart(outbox[first : first + MAX_FRAMES], zmq.NOBLOCK)
        # ZeroMQ's descriptor tells only once, and may have told just now.
        self._receive()

    def check_silence(self, silent_s: float, what: str) -> None:
        """Raises BrokenError if nothing was heard for too long; a server that never said a word has its timeout.

        After one call that found the server gone, the next one waits for no more than a repeat.
        """
        if self.welcome is None or (silent_s < self.silence_s and not self._seems_gone):
            return
        self._seems_gone = True
        raise BrokenError(
            f"no word from the {self.kind.name} at {self.endpoint} for {silent_s:.1f} s; still awaited: {what}",
            remedy=self._remedy(f"see whether it lives; {self.kind.start}"),
        )

    def _remedy(self, otherwise: str) -> str:
        """Returns what to check of the keys, and what else it may be unless it can be nothing else."""
        keys = self._handshakes.remedy
        return keys if self._handshakes.is_certain else "; ".join(filter(None, (keys, otherwise)))

    def _look_at_handshakes(self) -> None:
        self._handshakes.take()
        if self._handshakes.was_refused:
            self._tell_all(self._not_admitted())

    def _not_admitted(self) -> RefusedError:
        words = f"the {self.kind.name} at {self.endpoint} does not know this key; {self._handshakes.remedy}"
        return RefusedError(RefusalCode.NOT_ALLOWED, words)

    def _check_open(self) -> None:
        if self._is_ending:
            raise ClosedError("the client is closed", remedy="use it inside its async with block")

    def _receive(self) -> None:
        """Takes what has arrived, up to one turn's share."""
        if self._closed or self._loop is None:
            return
        for _ in range(_MESSAGES_PER_TURN):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            for frame in frames:
                self._hear(frame)
        self._loop.call_soon(self._receive)

    def _hear(self, frame: bytes) -> None:
        self.words_heard += 1
        self._seems_gone = False
        try:
            reply = self.kind.decode(frame)
        except ProtocolError as error:
            fields = {"endpoint": self.endpoint, "reason": str(error)}
            tell(log, logging.WARNING, Event.UNREADABLE_ANSWER, **fields)
            if self.welcome is None:
                self._tell_all(error)
            return
        if isinstance(reply, Goodbye):
            self._tell_all(reply)
        elif reply.id in self._exchanges:
            self._exchanges[reply.id].replies.put_nowait(reply)

    def _tell_all(self, news: Message | ForebayError | None) -> None:
        for exchange in self._exchanges.values():
            exchange.replies.put_nowait(news)

    def hang_up(self) -> None:
        """Ends all that is awaited; nothing is asked any more, but last words may be said until `close`."""
        self._is_ending = True
        self._tell_all(None)

    async def close(self) -> None:
        """Closes the connection; what is still said gets a second to be said, and one more to leave."""
        if self._closed:
            return
        self.hang_up()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LINGER_MS / 1000):
                    await self._nobody_talks.wait()
        finally:
            # Another close may have come as far meanwhile, and a context ends once.
            if not self._closed:
                self._flush()
                self._closed = True
                await self._disconnect()

    async def _disconnect(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._socket.FD)
            self._loop.remove_reader(self._handshakes.fileno())
        self._handshakes.close()
        self._socket.close()
        await in_own_thread(self._context.term)
