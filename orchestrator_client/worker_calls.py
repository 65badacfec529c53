"""Calls to a trainer's worker: each runs once, however often it is repeated on its way."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from forebay.wire import (
    BrokenError,
    Call,
    CallId,
    CancelCall,
    ClosedError,
    ForebayError,
    GetWorkerStatus,
    Granted,
    InProgress,
    Limits,
    Message,
    Raised,
    RefusalCode,
    Refused,
    Returned,
    TreeError,
    TreeRegistry,
    WorkerStatus,
    WorkerWelcome,
    decode_call_reply,
    pack,
    unpack,
)

from .data_endpoint import Target, data_target
from .exchange import Exchange
from .remote_errors import NotBegunError, RemoteCallError, unexpected
from .sending import Sending, Wire
from .server_kind import ServerKind
from .server_link import ServerLink

WORKER = ServerKind(
    name="trainer worker",
    setting="worker_endpoint",
    start="start the trainer (forebay.TrainerWorker)",
    look="its log, and TrainerHandle.status",
    data_setting="worker_data_endpoint",
    key_setting="worker_key_file",
    decode_reply=decode_call_reply,
)

OnSent = Callable[[], None]


class WorkerCalls:
    """Makes calls over one link.

    Args:
        link: To the worker.
        wire: For payloads.
        registry: Classes that may occur in trees.
    """

    def __init__(self, link: ServerLink, wire: Wire, registry: TreeRegistry) -> None:
        self.client_id = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._link = link
        self._wire = wire
        self._registry = registry

    @property
    def welcome(self) -> WorkerWelcome:
        """What the worker says of itself."""
        welcome = self._link.welcome
        if isinstance(welcome, WorkerWelcome):
            return welcome
        raise ClosedError("the client is not open", remedy="use it inside its async with block")

    def next_number(self) -> int:
        """Returns a number that this client has not used."""
        return next(self._numbers)

    async def prepare(self, method: str, payload: Any, options: dict[str, Any]) -> PreparedCall:
        """Makes a call ready to be sent; afterwards the payload is referred to by it alone.

        Raises:
            TreeError: Payload or options cannot travel; nothing was sent.
        """
        welcome = self.welcome
        sending, encoded = None, b""
        if payload is not None:
            prepared = await self._wire.payload(payload, registry=self._registry, limits=welcome.limits)
            encoded = prepared.manifest.encode(welcome.limits)
            sending = Sending(self._wire, prepared, self.data_target, self._link.standstill())
        call = Call(
            id=self._link.new_id(),
            epoch=welcome.epoch,
            call=CallId(self.client_id, self.next_number()),
            method=method,
            options=pack(options, registry=self._registry, limits=_option_limits(welcome.limits)),
            payload=encoded,
        )
        return PreparedCall(call, sending)

    def data_target(self) -> Target:
        """Returns where the worker wants its chunks."""
        return data_target(self._link.endpoint, self.welcome)

    async def run(self, prepared: PreparedCall, *, timeout_s: float, on_sent: OnSent | None = None) -> Returned:
        """Sends a call, its payload, and waits for its outcome; see `TrainerHandle.train_step`."""
        with self._link.talk():
            return await self._run(prepared, time.monotonic() + timeout_s, on_sent)

    async def _run(self, prepared: PreparedCall, deadline: float, on_sent: OnSent | None) -> Returned:
        call = prepared.call
        try:
            async with prepared.sending or contextlib.nullcontext():
                with self._link.exchange(call) as exchange:
                    self._link.send(call)
                    reply = await self._follow(exchange, prepared, deadline, on_sent)
        except BaseException:
            self._cancel(call)
            raise
        if isinstance(reply, Refused) and exchange.repeats:
            # A repeat that is on its way may find room, and would run.
            self._cancel(call)
        if isinstance(reply, Refused) and reply.code is RefusalCode.OTHER_RUN:
            with contextlib.suppress(ForebayError):
                await self._link.say_hello(deadline)
        return self._outcome(call.method, reply)

    def _cancel(self, call: Call) -> None:
        """Takes a call back: who gives up must not be trained behind their back. What runs already goes on."""
        self._link.send_last(CancelCall(id=self._link.new_id(), epoch=call.epoch, call=call.call))

    async def _follow(
        self, exchange: Exchange, prepared: PreparedCall, deadline: float, on_sent: OnSent | None
    ) -> Message:
        while True:
            reply = await exchange.next(deadline, f"the answer to {prepared.call.method}")
            match reply:
                case Granted() if prepared.sending is not None:
                    await prepared.sending.follow(reply)
                case InProgress() if prepared.sending is not None and not prepared.sending.is_done:
                    await prepared.sending.done()
                    if on_sent is not None:
                        on_sent()
                case InProgress():
                    continue
                case _:
                    return reply

    def _outcome(self, method: str, reply: Message) -> Returned:
        match reply:
            case Returned():
                return reply
            case Raised(began=False):
                raise NotBegunError(method, reply)
            case Raised():
                raise RemoteCallError(method, reply)
            case Refused(code=RefusalCode.OTHER_RUN):
                raise BrokenError(
                    f"the trainer worker at {self._link.endpoint} was restarted; whether {method} had run is not"
                    " known, and what was on its device is gone",
                    remedy="restore the trainer's state, then go on; the next call goes to the new worker",
                )
            case _:
                raise unexpected(method, reply)

    def value_of(self, returned: Returned) -> tuple[Any, str]:
        """Returns what a method returned; or None, and why it did not travel or cannot be had here."""
        if returned.value is None:
            return None, returned.omitted
        # It ran, so whatever is wrong with its value is no error of the call. And the bytes are here already.
        manifest_bytes = max(len(returned.value.manifest), Limits().max_manifest_bytes)
        limits = msgspec.structs.replace(Limits(), max_manifest_bytes=manifest_bytes)
        try:
            return unpack(returned.value, registry=self._registry, limits=limits), ""
        except TreeError as error:
            return None, str(error)

    async def status(self, timeout_s: float) -> WorkerStatus:
        """Asks the worker what it does."""
        request = GetWorkerStatus(id=self._link.new_id())
        reply = await self._link.ask(request, timeout_s=timeout_s, what="the worker's status")
        if isinstance(reply, WorkerStatus):
            return reply
        raise unexpected("status", reply)


@dataclasses.dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call, and the sending of its payload if it has one."""

    call: Call
    sending: Sending | None


def _option_limits(limits: Limits) -> Limits:
    return msgspec.structs.replace(
        limits, max_micro_batch_bytes=limits.max_manifest_bytes, size_setting="max_manifest_bytes"
    )
