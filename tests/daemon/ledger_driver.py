"""A ledger over plain memory, with its peers and an executor: no socket, no mapping, no clock.

The driver does what the ledger says, and after every event compares each slot's header, as the executor would have
written it, with the slot table.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from forebay.daemon import Settings
from forebay.daemon.actions import (
    Action,
    Address,
    AwaitWriters,
    Channel,
    ForgetHolder,
    Log,
    Reply,
    ReserveSlot,
    WatchHolder,
    WriteBody,
    WriteLoan,
    WriteOutcome,
    WriteState,
)
from forebay.daemon.ledger import Ledger
from forebay.daemon.ledger_settings import LedgerSettings
from forebay.daemon.micro_batch import FoundSlot
from forebay.shm import Envelope, Outcome, Slot, SlotState, SlotTable
from forebay.wire import (
    PROTOCOL_VERSION,
    Abandon,
    Advance,
    Attach,
    Await,
    ChunkFault,
    ChunkHeader,
    ControlRequest,
    Detach,
    Finished,
    GetStatus,
    Granted,
    Hello,
    Incoming,
    Lend,
    Limits,
    Message,
    MicroBatchState,
    Offer,
    Peer,
    Promoted,
    Reset,
    Staged,
    Status,
    TrainerRequest,
    Want,
    Welcome,
    decode_manifest,
    default_registry,
    describe,
    flatten,
)

M = TypeVar("M", bound=Message)

LIMITS = Limits(chunk_bytes=256, max_manifest_bytes=4096, max_micro_batch_bytes=64 << 10, max_key_bytes=64)
SLOT_BYTES = 16 << 10
ME = Peer(name="daemon", pid=1, host="here")
INSPECTOR = Address(Channel.CONTROL, b"inspector")
Run = tuple[int, int]


def manifest_of(nbytes: int, limits: Limits = LIMITS) -> bytes:
    """Encodes the manifest of a micro-batch with one leaf of that many bytes, in spans of 256."""
    flat = flatten({"x": np.zeros(nbytes, np.uint8)}, registry=default_registry, limits=limits)
    return describe(flat, limits).encode(limits)


def only(messages: Sequence[Message], kind: type[M]) -> M:
    """Returns the one message that there is."""
    assert len(messages) == 1, messages
    assert isinstance(messages[0], kind), messages
    return messages[0]


def ledger_settings(limits: Limits = LIMITS, **settings: Any) -> LedgerSettings:
    """Makes a ledger's settings: those of a daemon that was given none, but for these."""
    return dataclasses.replace(Settings().ledger, limits=limits, **settings)


@dataclasses.dataclass
class Header:
    """A slot file's header and envelope."""

    state: SlotState = SlotState.FREE
    generation: int = 0
    sequence: int = 0
    holder: str = ""
    envelope: bytes = b""
    body_bytes: int = 0


class Driver:
    """A daemon without I/O.

    Args:
        slots: How many.
        slot_bytes: File size of each at first.
        settings: Fields of `LedgerSettings`.
    """

    def __init__(self, slots: int = 2, *, slot_bytes: int = SLOT_BYTES, **settings: Any) -> None:
        self.now = 1000.0
        self.settings = ledger_settings(LIMITS, **settings)
        self.headers = [Header() for _ in range(slots)]
        self.growing: dict[int, int] = {}
        self.bodies: dict[int, bytes] = {}
        self.watched: list[str] = []
        self.forgotten: list[str] = []
        self.logs: list[Log] = []
        trained, others = self.settings.remembered_keys * 2, self.settings.remembered_keys
        self._rings: dict[bool, deque[tuple[int, Outcome]]] = {
            True: deque(maxlen=trained),
            False: deque(maxlen=others),
        }
        self._records = itertools.count()
        self._inboxes: dict[Address, list[Message]] = collections.defaultdict(list)
        self._ids = itertools.count(1)
        self._epochs = itertools.count(1)
        self.slots = SlotTable([Slot(index, slot_bytes=slot_bytes) for index in range(slots)])
        self._new_ledger()

    def _new_ledger(self) -> None:
        epoch = f"epoch-{next(self._epochs)}"
        self.ledger = Ledger(
            self.settings,
            self.slots,
            Incoming(),
            me=ME,
            epoch=epoch,
            software="0",
            pool="/pool",
            data_endpoint="ipc://data",
            now=self.now,
        )
        self.say(INSPECTOR, Hello(id=self.new_id(), version=PROTOCOL_VERSION, peer=ME))

    def restart(self) -> None:
        """Kills the daemon without a word; the next one adopts what the headers say, as `found_slots` does."""
        self.growing.clear()
        self.watched.clear()
        self._inboxes.clear()
        found = []
        for header, slot in zip(self.headers, self.slots, strict=True):
            if header.state is SlotState.FILLING:
                header.state = SlotState.FREE
            slot.state, slot.generation = header.state, header.generation
            if header.state is not SlotState.FREE:
                envelope = msgspec.msgpack.decode(header.envelope, type=Envelope)
                found.append(
                    FoundSlot(
                        index=slot.index,
                        generation=header.generation,
                        sequence=header.sequence,
                        envelope=envelope,
                        encoded_envelope=header.envelope,
                        body_bytes=header.body_bytes,
                        payload_bytes=decode_manifest(envelope.manifest, LIMITS).payload_bytes,
                        holder=header.holder,
                    )
                )
        self.slots = SlotTable(list(self.slots))
        self._new_ledger()
        self.perform(self.ledger.adopt(found, self.journal, self.now))

    @property
    def journal(self) -> list[Outcome]:
        """What the pool's journal holds, oldest first."""
        records = sorted(itertools.chain(*self._rings.values()), key=lambda record: record[0])
        return [outcome for _, outcome in records]

    def forget_journal(self) -> None:
        """Has all of it been so long ago that others have its places."""
        for ring in self._rings.values():
            ring.clear()

    # The executor.

    def perform(self, actions: Sequence[Action]) -> None:
        """Does what the ledger says, then checks that headers and slot table agree."""
        for action in actions:
            self._perform(action)
        for header, slot in zip(self.headers, self.slots, strict=True):
            is_growing = slot.index in self.growing and slot.state is SlotState.FILLING
            # What a slot that still grows is to hold is written once it has grown.
            state = SlotState.FREE if is_growing else slot.state
            assert header.state is state, (header, slot)
            if state is not SlotState.FREE:
                assert header.generation == slot.generation, (header, slot)
            assert (header.holder != "") is (state in (SlotState.LENT, SlotState.QUARANTINED)), (header, slot)
            assert (header.sequence > 0) is (state not in (SlotState.FREE, SlotState.FILLING)), (header, slot)

    def _perform(self, action: Action) -> None:
        match action:
            case Reply(to=to, message=message):
                self._inboxes[to].append(message)
            case WriteLoan() | WriteBody() | WriteState() | WriteOutcome():
                self._write(action)
            case ReserveSlot():
                assert action.slot not in self.growing
                self.growing[action.slot] = action.file_bytes
            case AwaitWriters():
                assert not action.arrivals.is_written_to
            case WatchHolder():
                self.watched.append(action.holder)
            case ForgetHolder():
                self.forgotten.append(action.holder)
            case Log():
                self.logs.append(action)

    def _write(self, action: WriteLoan | WriteBody | WriteState | WriteOutcome) -> None:
        if isinstance(action, WriteOutcome):
            outcome = action.outcome
            self._rings[outcome.is_of_training].append((next(self._records), outcome))
            return
        header = self.headers[action.slot]
        match action:
            case WriteLoan():
                header.state, header.generation = SlotState.FILLING, action.generation
                header.envelope, header.body_bytes = action.envelope, action.body_bytes
            case WriteBody():
                assert header.state is SlotState.FILLING
                self.bodies[action.slot] = action.body
            case WriteState():
                header.state, header.sequence, header.holder = action.state, action.sequence, action.holder

    # Events.

    def new_id(self) -> int:
        return next(self._ids)

    def say(self, sender: Address, request: ControlRequest | TrainerRequest) -> list[Message]:
        """Hands a peer's message to the ledger; returns what that peer has been told since it last looked."""
        if sender.channel is Channel.CONTROL:
            self.perform(self.ledger.control(sender, request, self.now))  # type: ignore[arg-type]
        else:
            self.perform(self.ledger.trainer(sender, request, self.now))  # type: ignore[arg-type]
        return self.heard(sender)

    def heard(self, peer: Address) -> list[Message]:
        """Returns what a peer has been told since it last looked."""
        return self._inboxes.pop(peer, [])

    def chunk(self, header: ChunkHeader) -> ChunkFault | None:
        """Brings a chunk, as the data socket would."""
        return self.settle(header, None)

    def settle(self, header: ChunkHeader, fault: ChunkFault | None) -> ChunkFault | None:
        """Brings a chunk, as a thread that receives would, with this wrong with its bytes."""
        incoming = self.ledger.incoming
        arrivals = incoming.claim(header)
        if isinstance(arrivals, ChunkFault):
            incoming.throw_away(arrivals)
            return arrivals
        if incoming.settle(arrivals, header, fault, self.now):
            self.perform(self.ledger.filled(arrivals, self.now))
        if fault is not None:
            incoming.throw_away(fault)
        return fault

    def grow(self, slot: int) -> None:
        """Ends a growth that was asked for."""
        file_bytes = max(self.slots[slot].slot_bytes, self.growing.pop(slot))
        self.perform(self.ledger.reserved(slot, file_bytes, self.now))

    def fail_to_grow(self, slot: int, words: str = "the mount is full") -> None:
        """Ends a growth that was asked for in failure."""
        del self.growing[slot]
        self.perform(self.ledger.reserve_failed(slot, words, self.now))

    def lock_is_free(self, holder: str) -> None:
        """The kernel says that nobody holds a trainer's lock any more."""
        self.watched.remove(holder)
        self.perform(self.ledger.holder_free(holder, self.now))

    def pass_time(self, seconds: float) -> None:
        """Moves the clock and ticks, as the loop does when a deadline is due."""
        self.now += seconds
        self.perform(self.ledger.tick(self.now))
        due = self.ledger.next_deadline()
        assert due is None or due > self.now, "the loop would spin"

    # Looking.

    def states(self) -> list[str]:
        """Returns the state of every slot."""
        return [slot.state.name for slot in self.slots]

    def status(self) -> Status:
        """Returns what an inspector sees."""
        self.heard(INSPECTOR)
        return only(self.say(INSPECTOR, GetStatus(id=self.new_id())), Status)

    def ready(self, queue: str = "train") -> tuple[str, ...]:
        """Returns a queue's READY keys in order."""
        return next((found.ready for found in self.status().queues if found.name == queue), ())

    def on_device(self, queue: str = "train") -> tuple[str, ...]:
        """Returns the keys that a queue's trainer has on its device."""
        return next((found.on_device for found in self.status().queues if found.name == queue), ())

    def is_filling(self) -> bool:
        """Tells whether anything is still on its way into a slot."""
        return self.ledger.is_filling

    def count(self, counter: str) -> int:
        return self.status().counters.get(counter, 0)

    def snapshot(self) -> tuple[object, ...]:
        """Returns all that can move, seen from outside."""
        status = msgspec.structs.replace(self.status(), id=0, counters={})
        used = [queue for queue in status.queues if queue.ready or queue.on_device or queue.trainer]
        status = msgspec.structs.replace(status, queues=tuple(used))
        headers = [dataclasses.replace(header) for header in self.headers]
        return status, headers, dict(self.growing), list(self.watched), self.ledger.next_deadline()

    @contextlib.contextmanager
    def nothing_moves(self) -> Iterator[None]:
        """Asserts that what happens inside moves nothing."""
        before = self.snapshot()
        yield
        assert self.snapshot() == before


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
