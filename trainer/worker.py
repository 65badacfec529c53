"""The trainer's worker: calls from orchestrators, around a staged engine."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import zmq

from forebay.sockets import (
    LimitedLog,
    Mailbox,
    milliseconds_until,
    stopped_by_sigterm,
    tell,
    too_many_frames,
    waking_signals,
)
from forebay.wire import (
    Call,
    CallRequest,
    CancelCall,
    ClosedError,
    Event,
    GetWorkerStatus,
    Hello,
    ProtocolError,
    Raised,
    RefusalCode,
    Refused,
    Returned,
    TreeRegistry,
    UsageError,
    WaitTimeoutError,
    WorkerWelcome,
    decode_call_request,
    default_registry,
)

from .call_books import CallBooks
from .call_limits import CallLimits
from .call_record import Address, Answer, CallRecord, GiveUp, LetGo, Receive, Run
from .call_runner import CallRunner
from .engine import StagedEngine
from .inline_payloads import InlinePayloads
from .worker_access import lacks_right, own_call
from .worker_card import WorkerCard
from .worker_methods import EngineMethods
from .worker_sockets import WorkerSockets

log = logging.getLogger("forebay.trainer")

_STOP_MARGIN_S = 5.0


class TrainerWorker:
    """Serves calls around a staged engine; a context manager.

    Calls of one method run one after another, in the order in which they are complete. In the mode `stage` the
    methods `fwd_bwd`, `stage_batch` and `apply_deferred_update` run beside each other and beside all others, so
    that staging goes on while a step waits for the device. `reset_staged` and `metrics` do so in every mode; all
    other methods share one line. None of them runs on the thread that serves: JAX settings that hold for one
    thread do not reach them.

    Args:
        engine: The engine. It stays its owner's: close it after this.
        registry: Classes that may occur in trees.
        name: Of this worker, for people.

    Raises:
        HeldError: Another process has the endpoint.
        HostError: The endpoint cannot be had.
        SettingError: A setting of the engine's queue is wrong.
    """

    def __init__(
        self, engine: StagedEngine, *, registry: TreeRegistry = default_registry, name: str = "trainer"
    ) -> None:
        if not isinstance(engine, StagedEngine):
            raise UsageError("what a worker serves", got=type(engine).__name__, limit="a forebay.StagedEngine")
        self.settings = engine.queue.settings
        self._card = WorkerCard(name, self.settings)
        self._books = CallBooks(self._card.epoch, self._call_limits())
        self._payloads = InlinePayloads(self._books)
        self._engine = EngineMethods(engine, self._books.counters)
        self._runner = CallRunner(
            self._engine,
            self._payloads,
            registry=registry,
            limits=self._card.limits,
            max_answer_bytes=self.settings.max_answer_bytes,
        )
        self._stop_at: float | None = None
        self._has_served = False
        self._log = LimitedLog(log)
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._is_closed = False
        self._mailbox = Mailbox()
        self._sockets = WorkerSockets(
            self.settings,
            self._card.limits,
            self._card.peer,
            books=self._books,
            payloads=self._payloads,
            mailbox=self._mailbox,
        )

    def _call_limits(self) -> CallLimits:
        return CallLimits(
            limits=self._card.limits,
            receive_lease_s=self.settings.inline_lease_s,
            inline_bytes=self.settings.inline_total_bytes,
            remembered_calls=self.settings.remembered_calls,
        )

    def __repr__(self) -> str:
        return f"TrainerWorker({self.endpoint!r}, {self._engine.state}, {len(self._runner.methods)} methods)"

    @property
    def endpoint(self) -> str:
        """Where orchestrators call it."""
        return self._sockets.control.address

    def register(self, name: str, function: Callable[..., Any], *, concurrent: bool = False) -> None:
        """Offers a method of the user's own, before `serve`.

        Args:
            name: As it is called by.
            function: Called with the payload, if the call has one, and with the call's options as keyword
                arguments. What it returns travels like a micro-batch, up to `max_answer_bytes`.
            concurrent: Whether it may run beside other methods; never beside itself.

        Raises:
            UsageError: The name is taken or none, or the worker serves already.
        """
        if self._has_served:
            raise UsageError(f"method {name!r} was registered too late", remedy="register it before serve")
        self._runner.register(name, function, concurrent=concurrent)

    # The loop.

    def serve(self) -> None:
        """Serves until `stop` is called.

        On the main thread SIGTERM stops it too, unless the process has a handler of its own for it; Ctrl-C raises.

        Raises:
            ClosedError: It is closed.
        """
        if self._is_closed:
            raise ClosedError("the worker is closed", remedy="make another one")
        self._has_served = True
        self._is_idle.clear()
        for address in self.settings.open_to_all:
            words = "everybody who reaches it may call its methods"
            tell(log, logging.WARNING, Event.INSECURE, endpoint=address, words=words)
        methods = list(self._runner.methods)
        tell(log, logging.INFO, Event.WORKER_READY, endpoint=self.endpoint, methods=methods)
        try:
            self._serve()
        finally:
            self._is_idle.set()

    def _serve(self) -> None:
        with waking_signals() as signals, stopped_by_sigterm(self.stop):
            poller = zmq.Poller()
            sockets = self._sockets
            control = sockets.control
            for source in (control.socket, control.connections.monitor, self._mailbox.fileno(), signals):
                if source != -1:
                    poller.register(source, zmq.POLLIN)
            while not self._is_over():
                ready = {source for source, _ in poller.poll(self._poll_ms())}
                if signals in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(signals, 64)
                self._turn(ready)

    def stop(self) -> None:
        """Has `serve` return once what runs is over; calls that wait are refused. From any thread or handler."""
        self._mailbox.post(self._drain)

    def _drain(self) -> None:
        if self._stop_at is None:
            now = time.monotonic()
            self._stop_at = now + self.settings.worker_drain_s
            self._books.drain(now)

    def _is_over(self) -> bool:
        if self._stop_at is None:
            return False
        return not self._books.is_running or time.monotonic() >= self._stop_at

    def _poll_ms(self) -> int | None:
        return milliseconds_until((self._books.next_deadline(), self._stop_at), time.monotonic())

    def _turn(self, ready: set[object]) -> None:
        for event in self._mailbox.take():
            event()
        if self._sockets.control.connections.monitor in ready:
            self._sockets.control.connections.attend()
        if self._sockets.control.socket in ready:
            self._receive()
        self._books.expire(time.monotonic())
        self._act()
        self._sockets.flush()

    def _receive(self) -> None:
        for routing, user, frames, too_many in self._sockets.control.received():
            for frame in frames:
                self._hear_frame(Address(routing, user), frame)
            if too_many:
                self._refuse_unreadable(Address(routing, user), too_many_frames(too_many))

    def _hear_frame(self, sender: Address, frame: bytes) -> None:
        try:
            request = decode_call_request(frame)
        except ProtocolError as error:
            self._refuse_unreadable(sender, str(error))
        else:
            self._admit(sender, request)

    def _admit(self, sender: Address, request: CallRequest) -> None:
        """Hears a request if its client may make it."""
        client = self._sockets.client_of(sender)
        lacking = lacks_right(client, request)
        if lacking:
            self._books.counters["refused_not_allowed"] += 1
            self._log.tell(logging.WARNING, Event.REFUSE, code=RefusalCode.NOT_ALLOWED.value, words=lacking)
            self._sockets.send(sender, Refused(id=request.id, code=RefusalCode.NOT_ALLOWED, words=lacking))
        else:
            self._hear(sender, own_call(client, request))

    def _refuse_unreadable(self, sender: Address, words: str) -> None:
        self._books.counters["refused_bad_request"] += 1
        self._log.tell(logging.WARNING, Event.UNREADABLE_CALL, reason=words)
        self._sockets.send(sender, Refused(code=RefusalCode.BAD_REQUEST, words=words))

    def _hear(self, sender: Address, request: CallRequest) -> None:
        now = time.monotonic()
        match request:
            case Hello():
                self._welcome(sender, request)
            case Call():
                self._sockets.knows(sender)
                self._books.call(sender, request, self._lane_of(request.method), now)
            case CancelCall():
                self._books.cancel(sender, request, now)
            case GetWorkerStatus():
                if not self._sockets.has_much_for(sender):
                    self._sockets.send(sender, self._card.status(request.id, self._engine, self._books))
        self._act()

    def _lane_of(self, method: str) -> str | None:
        known = self._runner.methods.get(method)
        return None if known is None else known.lane

    def _welcome(self, sender: Address, hello: Hello) -> None:
        welcome = self._card.welcome(
            hello, self._sockets.data.address, is_fed=self._engine.is_fed, methods=self._runner.methods
        )
        if isinstance(welcome, WorkerWelcome):
            self._sockets.knows(sender)
        self._sockets.send(sender, welcome)

    def _act(self) -> None:
        while actions := self._books.take_actions():
            for action in actions:
                match action:
                    case Answer(to=to, message=message):
                        self._sockets.send(to, message)
                    case Receive(call=call):
                        self._payloads.make_room(call)
                    case LetGo(payload_number=number):
                        self._payloads.let_go(number)
                    case GiveUp(call=call):
                        self._runner.give_up(call)
                    case Run(call=call):
                        self._runner.run(call, functools.partial(self._ended, call))

    def _ended(self, call: CallRecord, answer: Returned | Raised) -> None:
        self._mailbox.post(lambda: self._books.ended(call, answer, time.monotonic()))

    # The end.

    def close(self) -> None:
        """Ends it: says goodbye to its callers, and closes the sockets. Nothing is served afterwards.

        If another thread serves, it is stopped first. What still runs then goes on, on its own threads, and nobody
        hears of it.

        Raises:
            WaitTimeoutError: The thread that serves did not stop; nothing is closed.
        """
        if self._is_closed:
            return
        if not self._is_idle.is_set():
            self.stop()
            limit_s = self.settings.worker_drain_s + _STOP_MARGIN_S
            if not self._is_idle.wait(limit_s):
                raise WaitTimeoutError(
                    f"waited {limit_s:g} s for the thread that serves {self!r} to stop",
                    remedy="close it again later, or end this process",
                )
        self._is_closed = True
        self._drain()
        self._act()
        self._runner.close()
        self._sockets.close()
        self._mailbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
