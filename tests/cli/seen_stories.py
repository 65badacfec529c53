"""Micro-batches and daemons as an inspector may see them, to be judged."""

from __future__ import annotations

from typing import Any

from forebay.cli.stories import Seen
from forebay.wire import MicroBatchState, Moment, OfferStatus, Peeked, Peer, QueueStatus, SlotStatus, Status

DAEMON = Peer(name="forebay daemon", pid=1, host="here")
SENDER = Peer(name="orchestrator", pid=7, host="there")
TRAINER = Peer(name="trainer", pid=42, host="gpu")
UNKNOWN = Peer(name="a trainer from before the restart", pid=0, host="")
NOW_S = 1000.0


def slot(index: int, state: str, key: str = "", **fields: Any) -> SlotStatus:
    """Makes a slot of queue train."""
    default: dict[str, Any] = {"index": index, "generation": 1, "state": state, "slot_bytes": 1, "key": key}
    return SlotStatus(**default | {"queue": "train" if key else ""} | fields)


def queue(**fields: Any) -> QueueStatus:
    """Makes queue train, with a trainer that asks for nothing."""
    default: dict[str, Any] = {
        "name": "train",
        "ready": (),
        "on_device": (),
        "on_device_s": (),
        "trainer": TRAINER,
        "trainer_since_s": 100.0,
    }
    return QueueStatus(**default | fields)


def offer(key: str, **fields: Any) -> OfferStatus:
    """Makes an offer that has waited for 12 s and may for 18 more."""
    default: dict[str, Any] = {
        "queue": "train",
        "key": key,
        "payload_bytes": 1,
        "waits_s": 12.0,
        "left_s": 18.0,
        "sender": SENDER,
    }
    return OfferStatus(**default | fields)


def status(*slots: SlotStatus, **fields: Any) -> Status:
    """Makes a daemon's status."""
    offers = fields.get("offers", ())
    default: dict[str, Any] = {
        "software": "0",
        "epoch": "e",
        "peer": DAEMON,
        "uptime_s": 500.0,
        "draining": False,
        "pool": "/pool",
        "waiting_offers": len(offers),
        "slots": slots,
        "queues": (queue(),),
        "counters": {},
    }
    return Status(**default | fields)


def peeked(state: MicroBatchState, **fields: Any) -> Peeked:
    """Makes what is known of a micro-batch."""
    default: dict[str, Any] = {"attempt": "a", "state": state, "age_s": 5.0, "now_s": NOW_S}
    return Peeked(**default | fields)


def moment(event: str, ago_s: float, words: str = "", **fields: Any) -> Moment:
    """Makes a moment of key k in queue train."""
    default: dict[str, Any] = {"number": 1, "event": event, "queue": "train", "key": "k", "words": words}
    return Moment(**default | {"at_s": NOW_S - ago_s} | fields)


def seen(known: Peeked | None, daemon: Status | None = None, *moments: Moment) -> Seen:
    """Makes what is seen of key k of queue train."""
    return Seen("train", "k", known, moments, daemon or status(), NOW_S)
