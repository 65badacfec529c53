"""The control messages between a trainer and the daemon: attaching, lending slots, and giving them back."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from .limits import MAX_ENTRIES, Limits
from .message import Goodbye, Message, Peer, Refused, decode_with
from .states import MicroBatchState

T = TypeVar("T")
_Entries = Annotated[tuple[T, ...], msgspec.Meta(max_length=MAX_ENTRIES)]


class Attach(Message, frozen=True):
    """Attaches a trainer to a queue; answered by `Attached` or `Refused`.

    One that has more on its device than a message may name says this several times, each time with others.

    Attributes:
        holder: Name of the lock file in the pool's holders folder that the trainer keeps locked.
        held: (slot, generation) of every slot that it was lent and has not released.
        on_device: (key, attempt) of micro-batches that it has promoted and not finished.
    """

    version: int
    peer: Peer
    queue: str
    holder: str
    held: _Entries[tuple[int, int]] = ()
    on_device: _Entries[tuple[str, str]] = ()


class FindPool(Message, frozen=True):
    """Asks where the pool is, before a holder lock can be taken in it; answered by `PoolFound`."""

    version: int


class Want(Message, frozen=True):
    """States a trainer's standing demand.

    Attributes:
        holder: The attached holder.
        credit_total: Lends in queue order that it has allowed since it attached; a total, so that a repeat
            allows nothing more.
        keys: Keys that it waits for beyond that; the first `MAX_ENTRIES`.
    """

    holder: str
    credit_total: int
    keys: _Entries[str] = ()


class Promoted(Message, frozen=True):
    """A slot's bytes are on the device and the slot is released; answered by `Done`."""

    holder: str
    slot: int
    generation: int
    key: str


class Finished(Message, frozen=True):
    """A micro-batch is consumed, or was dropped by the trainer; answered by `Done`.

    Attributes:
        attempt: The stage call that it came by, for a daemon that was restarted since.
        slot: The slot, if the trainer still holds it, else -1.
        generation: That of the slot which it was lent in; 0 if that was in another pool.
        reason: Empty if consumed, else why it was dropped.
        stale: Whether that was because it was stale.
    """

    holder: str
    key: str
    attempt: str = ""
    slot: int = -1
    generation: int = 0
    reason: str = ""
    stale: bool = False


class Detach(Message, frozen=True):
    """Ends a trainer's attachment; its slots come back when its lock is free. Answered by `Done`."""

    holder: str


class PoolFound(Message, frozen=True):
    """Where the pool is, as the daemon sees it, and the daemon's version."""

    version: int
    software: str
    epoch: str
    pool: str


class Attached(Message, frozen=True):
    """Answers `Attach`."""

    epoch: str
    limits: Limits


class Lend(Message, frozen=True):
    """Lends a READY slot to the trainer.

    Attributes:
        slot: Slot index; the file in the pool that holds it is named after it.
        generation: Must equal the one in the slot's own header.
        key: The micro-batch's key.
        file_bytes: The slot file's size now; an older, smaller mapping must be renewed.
        on_credit: Whether it counts towards `Want.credit_total`; a wanted key and a repeated lend do not.
        expires_s: Seconds in which its transfer may begin; None for any number.
    """

    slot: int
    generation: int
    key: str
    file_bytes: int
    on_credit: bool
    expires_s: float | None = None


class Stale(Message, frozen=True):
    """What was lent is stale by now: it is dropped, unless its transfer to the device has begun.

    Attributes:
        slot: The slot.
        generation: That slot's generation.
        reason: Why it is stale.
    """

    slot: int
    generation: int
    reason: str


class KeyGone(Message, frozen=True):
    """A wanted key will never come.

    Attributes:
        stale: Whether it was dropped because it was stale.
    """

    key: str
    state: MicroBatchState
    reason: str
    stale: bool = False


class Done(Message, frozen=True):
    """The request was carried out, now or before."""


TrainerRequest = FindPool | Attach | Want | Promoted | Finished | Detach
TrainerReply = PoolFound | Attached | Lend | Stale | KeyGone | Refused | Done | Goodbye

_REQUESTS = msgspec.msgpack.Decoder(TrainerRequest)
_REPLIES = msgspec.msgpack.Decoder(TrainerReply)


def decode_trainer_request(frame: bytes) -> TrainerRequest:
    """Decodes what a trainer sent.

    Raises:
        ProtocolError: It is no such message.
    """
    return decode_with(_REQUESTS, frame)


def decode_trainer_reply(frame: bytes) -> TrainerReply:
    """Decodes what the daemon sent to a trainer.

    Raises:
        ProtocolError: It is no such message.
    """
    return decode_with(_REPLIES, frame)
