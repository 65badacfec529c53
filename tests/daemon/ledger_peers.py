"""The peers of a ledger over plain memory: orchestrators and trainers, and what they say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from forebay.daemon.actions import Address, Channel
from forebay.wire import (
    PROTOCOL_VERSION,
    Abandon,
    Advance,
    Attach,
    Await,
    ChunkHeader,
    ControlRequest,
    Detach,
    Finished,
    Granted,
    Hello,
    Lend,
    Limits,
    Message,
    MicroBatchState,
    Offer,
    Peer,
    Promoted,
    Reset,
    Staged,
    TrainerRequest,
    Want,
    Welcome,
    decode_manifest,
    default_registry,
    describe,
    flatten,
)

from .ledger_driver import LIMITS, Driver, only

Run = tuple[int, int]


def manifest_of(nbytes: int, limits: Limits = LIMITS) -> bytes:
    """Encodes the manifest of a micro-batch with one leaf of that many bytes, in spans of 256."""
    flat = flatten({"x": np.zeros(nbytes, np.uint8)}, registry=default_registry, limits=limits)
    return describe(flat, limits).encode(limits)


class Sender:
    """An orchestrator's connection."""

    def __init__(self, driver: Driver, name: str = "orchestrator", *, hello: bool = True) -> None:
        self.address = Address(Channel.CONTROL, name.encode())
        self._driver = driver
        self._peer = Peer(name=name, pid=7, host="there")
        if hello:
            self.say_hello()

    def say_hello(self) -> Welcome:
        return only(self.say(Hello(id=self._driver.new_id(), version=PROTOCOL_VERSION, peer=self._peer)), Welcome)

    def say(self, request: ControlRequest) -> list[Message]:
        return self._driver.say(self.address, request)

    def heard(self) -> list[Message]:
        return self._driver.heard(self.address)

    def offer(
        self,
        key: str,
        attempt: str = "",
        *,
        nbytes: int = 600,
        queue: str = "train",
        wait_s: float = 30.0,
        manifest: bytes | None = None,
        version: int | None = None,
        expires_s: float | None = None,
        age_s: float = 0.0,
    ) -> list[Message]:
        """Offers; the attempt is by default the key's first one."""
        offer = Offer(
            id=self._driver.new_id(),
            queue=queue,
            key=key,
            attempt=attempt or f"{queue}/{key}/1",
            manifest=manifest_of(nbytes) if manifest is None else manifest,
            wait_s=wait_s,
            policy_version=version,
            expires_s=expires_s,
            age_s=age_s,
        )
        return self.say(offer)

    def grant(
        self, key: str, attempt: str = "", *, nbytes: int = 600, queue: str = "train", **freshness: Any
    ) -> Granted:
        """Offers and is granted a slot at once."""
        return only(self.offer(key, attempt, nbytes=nbytes, queue=queue, **freshness), Granted)

    def fill(self, grant: Granted, *, nbytes: int = 600) -> Staged:
        """Sends every missing span and hears that the micro-batch is staged."""
        for header in chunk_headers(grant, nbytes):
            assert self._driver.chunk(header) is None
        return only(self.heard(), Staged)

    def stage(
        self, key: str, attempt: str = "", *, nbytes: int = 600, queue: str = "train", **freshness: Any
    ) -> Granted:
        """Offers, is granted a slot, fills it."""
        grant = self.grant(key, attempt, nbytes=nbytes, queue=queue, **freshness)
        self.fill(grant, nbytes=nbytes)
        return grant

    def abandon(self, key: str, attempt: str = "", *, queue: str = "train") -> list[Message]:
        attempt = attempt or f"{queue}/{key}/1"
        return self.say(Abandon(id=self._driver.new_id(), queue=queue, key=key, attempt=attempt))

    def wait_for(
        self,
        key: str,
        until: MicroBatchState = MicroBatchState.CONSUMED,
        *,
        queue: str = "train",
        id: int = 0,  # noqa: A002
    ) -> list[Message]:
        return self.say(Await(id=id or self._driver.new_id(), queue=queue, key=key, until=until))

    def advance(self, version: int, *, queue: str = "train") -> list[Message]:
        return self.say(Advance(id=self._driver.new_id(), queue=queue, policy_version=version))

    def reset(self, queue: str = "train") -> list[Message]:
        return self.say(Reset(id=self._driver.new_id(), queue=queue))


def chunk_headers(grant: Granted, nbytes: int = 600) -> list[ChunkHeader]:
    """Returns the header of every span that a grant says is missing, of a micro-batch from `manifest_of`."""
    spans = decode_manifest(manifest_of(nbytes), LIMITS).layout(LIMITS.chunk_bytes).spans
    return [
        ChunkHeader(
            slot=grant.slot,
            span=index,
            length=spans[index].length,
            generation=grant.generation,
            token=grant.token,
            offset=spans[index].offset,
            checksum=0,
        )
        for first, count in grant.missing
        for index in range(first, first + count)
    ]


class Trainer:
    """A trainer's connection and its holder lock."""

    def __init__(self, driver: Driver, holder: str = "holder1", *, queue: str = "train", route: str = "") -> None:
        self.address = Address(Channel.TRAINER, (route or holder).encode())
        self.holder = holder
        self.queue = queue
        self._driver = driver
        self._peer = Peer(name=f"trainer-{holder}", pid=4711, host="gpu-host")

    def say(self, request: TrainerRequest) -> list[Message]:
        return self._driver.say(self.address, request)

    def heard(self) -> list[Message]:
        return self._driver.heard(self.address)

    def attach(
        self,
        *,
        held: Sequence[Run] = (),
        on_device: Sequence[tuple[str, str]] = (),
        version: int = PROTOCOL_VERSION,
    ) -> list[Message]:
        attach = Attach(
            id=self._driver.new_id(),
            version=version,
            peer=self._peer,
            queue=self.queue,
            holder=self.holder,
            held=tuple(held),
            on_device=tuple(on_device),
        )
        return self.say(attach)

    def want(self, credit_total: int, *keys: str) -> list[Message]:
        return self.say(Want(holder=self.holder, credit_total=credit_total, keys=keys))

    def lends(self, credit_total: int, *keys: str) -> list[Lend]:
        """States a demand and returns the slots that are lent for it."""
        messages = self.want(credit_total, *keys)
        lends = [message for message in messages if isinstance(message, Lend)]
        assert len(lends) == len(messages), messages
        return lends

    def promoted(self, lend: Lend) -> list[Message]:
        return self.say(
            Promoted(
                id=self._driver.new_id(),
                holder=self.holder,
                slot=lend.slot,
                generation=lend.generation,
                key=lend.key,
            )
        )

    def finished(
        self,
        key: str,
        *,
        attempt: str = "",
        lend: Lend | None = None,
        released: Lend | None = None,
        reason: str = "",
        stale: bool = False,
    ) -> list[Message]:
        """Reports the end of what is still lent, or was released, or never came by a slot."""
        came_by = lend or released
        finished = Finished(
            id=self._driver.new_id(),
            holder=self.holder,
            key=key,
            attempt=attempt,
            slot=lend.slot if lend else -1,
            generation=came_by.generation if came_by else 0,
            reason=reason,
            stale=stale,
        )
        return self.say(finished)

    def detach(self) -> list[Message]:
        return self.say(Detach(id=self._driver.new_id(), holder=self.holder))

    def die(self) -> None:
        """Dies: the kernel frees its lock, which is all that the daemon hears."""
        self._driver.lock_is_free(self.holder)
