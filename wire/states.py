"""A micro-batch's life and the reasons for which it is refused, in the words that all sides use."""

from __future__ import annotations

import enum


class MicroBatchState(enum.StrEnum):
    """Where a micro-batch is, as the orchestrator sees it."""

    OFFERED = "offered"
    FILLING = "filling"
    READY = "ready"
    ON_DEVICE = "on_device"
    CONSUMED = "consumed"
    DROPPED = "dropped"
    LOST = "lost"


class MicroBatchEvent(enum.StrEnum):
    """What happens to a micro-batch."""

    GRANT = "grant"
    PUBLISH = "publish"
    PROMOTE = "promote"
    CONSUME = "consume"
    DROP = "drop"
    LOSE = "lose"


_S, _E = MicroBatchState, MicroBatchEvent

MICRO_BATCH_TRANSITIONS: dict[tuple[MicroBatchState, MicroBatchEvent], MicroBatchState] = {
    (_S.OFFERED, _E.GRANT): _S.FILLING,
    (_S.OFFERED, _E.DROP): _S.DROPPED,
    (_S.FILLING, _E.PUBLISH): _S.READY,
    (_S.FILLING, _E.DROP): _S.DROPPED,
    (_S.READY, _E.PROMOTE): _S.ON_DEVICE,
    (_S.READY, _E.DROP): _S.DROPPED,
    (_S.ON_DEVICE, _E.CONSUME): _S.CONSUMED,
    (_S.ON_DEVICE, _E.DROP): _S.DROPPED,
    (_S.ON_DEVICE, _E.LOSE): _S.LOST,
}
"""Every legal move of a micro-batch; a missing entry is an illegal one."""

GONE = frozenset({_S.DROPPED, _S.LOST})
"""States from which nothing is ever trained."""


class RefusalCode(enum.StrEnum):
    """Why a request was refused."""

    VERSION = "version"
    HELLO_FIRST = "hello_first"
    BAD_REQUEST = "bad_request"
    BAD_MANIFEST = "bad_manifest"
    TOO_LARGE = "too_large"
    NO_SLOT = "no_slot"
    SHM_FULL = "shm_full"
    TOO_MANY_OFFERS = "too_many_offers"
    TOO_MANY = "too_many"
    STALE = "stale"
    DRAINING = "draining"
    CONSUMED = "consumed"
    IN_USE = "in_use"
    REPLACED = "replaced"
    DROPPED = "dropped"
    UNKNOWN_KEY = "unknown_key"
    QUEUE_TAKEN = "queue_taken"
    NOT_ATTACHED = "not_attached"
    STAGING_OFF = "staging_off"
    OTHER_RUN = "other_run"
    UNKNOWN_METHOD = "unknown_method"
    CANCELLED = "cancelled"
    FORGOTTEN = "forgotten"
    INLINE_FULL = "inline_full"
    TOO_MANY_CALLS = "too_many_calls"
    NOT_ALLOWED = "not_allowed"


REFUSAL_MEANINGS: dict[RefusalCode, str] = {
    RefusalCode.VERSION: "the two sides speak different protocol versions",
    RefusalCode.HELLO_FIRST: "the daemon does not know this connection yet; clients say hello and repeat",
    RefusalCode.BAD_REQUEST: "the message cannot be read, or a field is out of range",
    RefusalCode.BAD_MANIFEST: "the manifest is malformed, contradicts itself or exceeds a limit",
    RefusalCode.TOO_LARGE: "the micro-batch is larger than a slot may grow",
    RefusalCode.NO_SLOT: "no slot became free within the time that the offer would wait",
    RefusalCode.SHM_FULL: "shared memory has no room for the slot to grow",
    RefusalCode.TOO_MANY_OFFERS: "too many offers wait for a slot already",
    RefusalCode.TOO_MANY: "as many queues, waits or keys on a device are there as may be; the words name which",
    RefusalCode.STALE: "the micro-batch is older, or its policy more versions behind, than it or its queue may be",
    RefusalCode.DRAINING: "the daemon, or the worker, is shutting down",
    RefusalCode.CONSUMED: "the key was trained already and is never trained again",
    RefusalCode.IN_USE: "the trainer holds this key now, so it cannot be replaced",
    RefusalCode.REPLACED: "a newer attempt for the same key took this one's place",
    RefusalCode.DROPPED: "this attempt was dropped: reset, abandoned or out of time",
    RefusalCode.UNKNOWN_KEY: "the daemon knows no micro-batch of that key",
    RefusalCode.QUEUE_TAKEN: "another live trainer is attached to the queue",
    RefusalCode.NOT_ATTACHED: "the daemon does not know this trainer; trainers attach again and repeat",
    RefusalCode.STAGING_OFF: "the trainer stages nothing: its mode is off, or no daemon feeds it",
    RefusalCode.OTHER_RUN: "the call was meant for another run of the trainer's worker",
    RefusalCode.UNKNOWN_METHOD: "the trainer's worker has no method of that name",
    RefusalCode.CANCELLED: "its caller had given the call up before it ran",
    RefusalCode.FORGOTTEN: "the call is over, and its answer is no longer kept",
    RefusalCode.INLINE_FULL: "the payloads that are on their way to the worker take all the memory that they may",
    RefusalCode.TOO_MANY_CALLS: "too many calls wait for the worker, or run there, already",
    RefusalCode.NOT_ALLOWED: "the client's key is not authorised, or lacks the right that the words name",
}
"""What each code means; the reference in the docs is made from it."""
