"""The control messages between orchestrators or inspectors and the daemon."""

from __future__ import annotations

import msgspec

from .access import DataProtection
from .inspection import GetStatus, Peek, Peeked, Status
from .limits import Limits
from .message import Goodbye, Message, Peer, Refused, decode_with
from .moments import Events, GetEvents
from .orders import Drain, Forget, Forgotten, Pause, Resume, Valves
from .states import MicroBatchState


class Hello(Message, frozen=True):
    """Opens a connection; answered by `Welcome`, or `Refused` with code `version`."""

    version: int
    peer: Peer


class Offer(Message, frozen=True):
    """Asks to stage a micro-batch; answered by `Granted`, then `Staged`; or `Refused`.

    A repeat, while it still waits for a slot, is answered by `Reached`.

    Attributes:
        queue: Queue name.
        key: The micro-batch's key in that queue.
        attempt: One logical stage call; a repeat of the same attempt is the same request.
        manifest: From `Manifest.encode`.
        wait_s: Seconds to wait for a slot before the daemon refuses.
        body: All of a small micro-batch's body: it is published without a grant. Empty for none.
        checksum: Of the body, as a chunk's at offset 0; a body that does not fit it is sent as chunks instead.
        policy_version: Of the policy that it was made with; None if nobody says.
        expires_s: Age in seconds from which on it is stale; None for never.
        age_s: Seconds since the stage call began, when this message was sent; each repeat says it anew.
    """

    queue: str
    key: str
    attempt: str
    manifest: bytes
    wait_s: float
    body: bytes = b""
    checksum: int = 0
    policy_version: int | None = None
    expires_s: float | None = None
    age_s: float = 0.0


class Abandon(Message, frozen=True):
    """Gives up an attempt; answered by `Reached` with its state now, dropped where there is no such attempt."""

    queue: str
    key: str
    attempt: str


class Await(Message, frozen=True):
    """Asks to hear when a key reaches a state; answered by `Reached` or `Gone`, when it happens."""

    queue: str
    key: str
    until: MicroBatchState


class Reset(Message, frozen=True):
    """Drops what a queue holds and the trainer does not, the rest if it comes back; answered by `WasReset`."""

    queue: str


class Advance(Message, frozen=True):
    """Tells a queue the trainer's policy version; answered by `Advanced`. A smaller one than it knows is no news.

    What is too many versions behind from then on is dropped, unless it is on the device already.
    """

    queue: str
    policy_version: int


class Welcome(Message, frozen=True, kw_only=True):
    """Answers `Hello`.

    Attributes:
        epoch: Names this run of the daemon; it changes when the daemon restarts.
        data_endpoint: Where chunks go; a wildcard host stands for the host that the client dialled.
        data_protection: What guards it; a client with keys uses them there only if it is encrypted.
    """

    version: int
    software: str
    epoch: str
    peer: Peer
    data_endpoint: str
    limits: Limits
    data_protection: DataProtection = DataProtection.NONE


class Granted(Message, frozen=True):
    """A slot is ready to be filled.

    Attributes:
        attempt: Of the offer.
        slot: Slot index.
        generation: Slot generation.
        token: Names this grant in every chunk.
        missing: (first, count) runs of span indices that have not arrived.
        received_bytes: Bytes that have arrived, gaps between small leaves included; tells a repeated offer
            whether the data still moves.
        chunk_bytes: How the body is cut; a daemon that was restarted may cut it otherwise.
    """

    attempt: str
    slot: int
    generation: int
    token: int
    missing: tuple[tuple[int, int], ...]
    received_bytes: int
    chunk_bytes: int


class Staged(Message, frozen=True):
    """The micro-batch of this attempt is published."""

    state: MicroBatchState


class Reached(Message, frozen=True):
    """A key is in this state now."""

    state: MicroBatchState


class Gone(Message, frozen=True):
    """A key will never reach the awaited state.

    Attributes:
        stale: Whether it was dropped because it was stale, so that its bytes should go no other way either.
    """

    state: MicroBatchState
    reason: str
    stale: bool = False


class WasReset(Message, frozen=True):
    """How many micro-batches a reset dropped."""

    dropped: int


class Advanced(Message, frozen=True):
    """The greatest policy version that a queue was told."""

    policy_version: int


Inspection = GetStatus | Peek | GetEvents
"""Questions that change nothing."""

Order = Drain | Pause | Resume | Forget
"""What only an operator asks for."""

ControlRequest = Hello | Offer | Abandon | Await | Reset | Advance | Inspection | Order
_Staging = Welcome | Granted | Staged | Refused | Reached | Gone | WasReset | Advanced | Goodbye
ControlReply = _Staging | Status | Peeked | Events | Valves | Forgotten

_REQUESTS = msgspec.msgpack.Decoder(ControlRequest)
_REPLIES = msgspec.msgpack.Decoder(ControlReply)


def decode_control_request(frame: bytes) -> ControlRequest:
    """Decodes what an orchestrator or inspector sent.

    Raises:
        ProtocolError: It is no such message.
    """
    return decode_with(_REQUESTS, frame)


def decode_control_reply(frame: bytes) -> ControlReply:
    """Decodes what the daemon sent to an orchestrator or inspector.

    Raises:
        ProtocolError: It is no such message.
    """
    return decode_with(_REPLIES, frame)
