"""The control messages between an orchestrator and a trainer's worker: calls, and what becomes of them.

`Hello`, `Granted`, `Refused` and `Goodbye` are those of the daemon, and a call's payload travels as a micro-batch
does: its manifest in the call, its bytes in chunks.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from .control import Granted, Hello, Welcome
from .message import Goodbye, Message, Peer, Refused, decode_with
from .packed import PackedTree


class CallId(msgspec.Struct, frozen=True, array_like=True):
    """Names one logical call: the same id is the same call, however often it is repeated.

    Attributes:
        client: Unlike that of every other client.
        number: From 1, growing with each call of that client.
    """

    client: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    number: Annotated[int, msgspec.Meta(ge=1)]


class CallState(enum.StrEnum):
    """Where a call is, in the worker."""

    RECEIVING = "receiving"
    QUEUED = "queued"
    RUNNING = "running"
    OVER = "over"


class WorkerState(enum.StrEnum):
    """What a worker is good for.

    Attributes:
        READY: All is as it should be.
        FAILED: A step or an update failed after it had begun; what is accumulated on the device may be wrong.
    """

    READY = "ready"
    FAILED = "failed"


class Call(Message, frozen=True):
    """Calls a method; answered by `Returned`, `Raised` or `Refused`.

    A call with a payload is answered by `Granted` first, and a repeat of one that is not over by `Granted` or
    `InProgress`.

    Attributes:
        epoch: Of the run of the worker that it is meant for; another run never saw the earlier calls.
        call: Its id.
        method: Name of the method.
        options: Its keyword arguments, a dict.
        payload: The payload's manifest; empty for none.
    """

    epoch: str
    call: CallId
    method: str
    options: PackedTree
    payload: bytes = b""


class CancelCall(Message, frozen=True):
    """Nobody waits for a call any more: unless it runs, it will not; a late repeat of it is refused."""

    epoch: str
    call: CallId


class GetWorkerStatus(Message, frozen=True):
    """Asks for a `WorkerStatus`, which is answered whatever the methods do."""


class WorkerWelcome(Welcome, frozen=True):
    """Answers `Hello`.

    Attributes:
        mode: The trainer's `StageMode`.
        is_fed: Whether the trainer takes what a daemon lends.
        methods: Names of its methods.
    """

    mode: str
    is_fed: bool
    methods: tuple[str, ...]


class InProgress(Message, frozen=True):
    """The call is known, and all that it needs has arrived."""

    state: CallState


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How a `fwd_bwd` went, in seconds of the worker's own clock.

    Attributes:
        key: Of the micro-batch; empty if it had none.
        is_staged: Whether it was staged, or came with the call.
        wait_s: From the call being complete until its micro-batch could be handed to the device.
        dispatch_s: Handing it over.
        ready_s: From the beginning of that until the device was done.
        idle_s: How long the device had nothing to do before; 0 for the first.
    """

    key: str
    is_staged: bool
    wait_s: float
    dispatch_s: float
    ready_s: float
    idle_s: float


class Returned(Message, frozen=True):
    """The method returned.

    Attributes:
        value: What it returned, with arrays fetched from the device; None if that does not travel.
        omitted: Why it does not.
        times: Of a `fwd_bwd`.
    """

    value: PackedTree | None
    omitted: str = ""
    times: StepTimes | None = None


class Raised(Message, frozen=True):
    """The method raised.

    Attributes:
        kind: The exception's class.
        words: What it says.
        traceback: As the worker would print it.
        began: Whether anything may have been handed to the device, now or for the same key before.
        state: Of the worker, after it.
    """

    kind: str
    words: str
    traceback: str
    began: bool
    state: WorkerState


class CallStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One call that is not over; `since_s` seconds in its state."""

    method: str
    client: str
    number: int
    state: CallState
    since_s: float
    received_bytes: int = 0
    expected_bytes: int = 0


class WorkerStatus(Message, frozen=True):
    """What a worker does now.

    Attributes:
        failure: Why it is `failed`.
        calls: Those that are not over.
        counters: Calls by method and outcome, refusals, and chunks that were thrown away.
    """

    software: str
    epoch: str
    peer: Peer
    uptime_s: float
    mode: str
    state: WorkerState
    failure: str
    draining: bool
    calls: tuple[CallStatus, ...]
    counters: dict[str, int]


CallRequest = Hello | Call | CancelCall | GetWorkerStatus
CallReply = WorkerWelcome | Granted | InProgress | Returned | Raised | Refused | WorkerStatus | Goodbye

_REQUESTS = msgspec.msgpack.Decoder(CallRequest)
_REPLIES = msgspec.msgpack.Decoder(CallReply)


def decode_call_request(frame: bytes) -> CallRequest:
    """Decodes what an orchestrator sent to a worker.

    Raises:
        ProtocolError: It is no such message.
    """
    return decode_with(_REQUESTS, frame)


def decode_call_reply(frame: bytes) -> CallReply:
    """Decodes what a worker sent to an orchestrator.

    Raises:
        ProtocolError: It is no such message.
    """
    return decode_with(_REPLIES, frame)
