"""What an offer says: whether it can be taken in, and the micro-batch that it makes."""

from __future__ import annotations

import math

import msgspec

from forebay.shm import Envelope
from forebay.wire import (
    MAX_EXPIRES_S,
    MAX_POLICY_VERSION,
    Client,
    Limits,
    Offer,
    chunk_checksum,
    decode_manifest,
)

from .actions import Address
from .micro_batch import MicroBatch

_MAX_WAIT_S = 86_400


def fault_of(offer: Offer, limits: Limits) -> str:
    """Says what is wrong with an offer's fields, beside its manifest; empty for nothing."""
    names = (offer.queue, offer.key, offer.attempt)
    are_names = all(0 < len(name.encode()) <= limits.max_key_bytes for name in names)
    if not are_names or not 0 <= offer.wait_s <= _MAX_WAIT_S:
        words = f"queue, key and attempt need 1 to {limits.max_key_bytes} bytes, "
        return words + f"wait_s 0 to {_MAX_WAIT_S}"
    if not 0 <= (offer.policy_version or 0) <= MAX_POLICY_VERSION:
        return f"policy_version needs 0 to {MAX_POLICY_VERSION}"
    if not (abs(offer.expires_s or 0.0) <= MAX_EXPIRES_S and 0 <= offer.age_s <= MAX_EXPIRES_S):
        return f"expires_s needs at most {MAX_EXPIRES_S:g} either way, age_s 0 to as much"
    return ""


def offered_batch(offer: Offer, sender: Address, client: Client, limits: Limits, now: float) -> MicroBatch:
    """Makes the micro-batch of an offer, without its body if that is wrong: its chunks are then asked for.

    Raises:
        TreeError: The manifest is not accepted; a TooLargeError if only for its size.
    """
    manifest = decode_manifest(offer.manifest, limits)
    envelope = _envelope_of(offer, now)
    return MicroBatch(
        queue=offer.queue,
        key=offer.key,
        attempt=offer.attempt,
        envelope=msgspec.msgpack.encode(envelope),
        leaf_bytes=manifest.leaf_bytes,
        payload_bytes=manifest.payload_bytes,
        body_bytes=manifest.body_bytes,
        sender=sender,
        client=client,
        offer_id=offer.id,
        deadline=now + offer.wait_s,
        body=offer.body if _has_right_body(offer, manifest.body_bytes, limits) else b"",
        since=now,
        came_at=now,
        offered_at=envelope.offered_at,
        expires_at=math.inf if envelope.expires_at is None else envelope.expires_at,
        policy_version=offer.policy_version,
    )


def _envelope_of(offer: Offer, now: float) -> Envelope:
    offered_at = now - offer.age_s
    return Envelope(
        *(offer.queue, offer.key, offer.attempt, offer.manifest),
        offered_at=offered_at,
        expires_at=None if offer.expires_s is None else offered_at + offer.expires_s,
        policy_version=offer.policy_version,
    )


def _has_right_body(offer: Offer, body_bytes: int, limits: Limits) -> bool:
    is_right = 0 < len(offer.body) == body_bytes <= limits.max_eager_bytes
    return is_right and chunk_checksum(offer.body, 0) == offer.checksum
