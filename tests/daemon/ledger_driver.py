"""A ledger over plain memory, with an executor: no socket, no mapping, no clock.

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
    ChunkFault,
    ChunkHeader,
    ControlRequest,
    GetStatus,
    Hello,
    Incoming,
    Limits,
    Message,
    Peer,
    Status,
    TrainerRequest,
    decode_manifest,
)

M = TypeVar("M", bound=Message)

LIMITS = Limits(chunk_bytes=256, max_manifest_bytes=4096, max_micro_batch_bytes=64 << 10, max_key_bytes=64)
SLOT_BYTES = 16 << 10
ME = Peer(name="daemon", pid=1, host="here")
INSPECTOR = Address(Channel.CONTROL, b"inspector")


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
    ready_at: float = 0.0
    lent_at: float = 0.0
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
        self.notes: dict[str, Peer] = {}
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
        """Kills the daemon without a word; the next one adopts what the headers say, as `found_in` does."""
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
                        ready_at=header.ready_at,
                        lent_at=header.lent_at,
                    )
                )
        self.slots = SlotTable(list(self.slots))
        self._new_ledger()
        self.perform(self.ledger.adopt(found, self.journal, self.notes, self.now))

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
            is_held = state in (SlotState.LENT, SlotState.QUARANTINED)
            assert (header.holder != "") is (header.lent_at > 0) is is_held, (header, slot)
            is_published = state not in (SlotState.FREE, SlotState.FILLING)
            assert (header.sequence > 0) is (header.ready_at > 0) is is_published, (header, slot)

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
                header.ready_at, header.lent_at = action.ready_at, action.lent_at

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
        status = msgspec.structs.replace(self.status(), id=0, counters={}, peers=(), peer_count=0)
        used = [
            msgspec.structs.replace(queue, asks_s=0.0, waits_for=())
            for queue in status.queues
            if queue.ready or queue.on_device or queue.trainer
        ]
        status = msgspec.structs.replace(status, queues=tuple(used))
        headers = [dataclasses.replace(header) for header in self.headers]
        return status, headers, dict(self.growing), list(self.watched), self.ledger.next_deadline()

    @contextlib.contextmanager
    def nothing_moves(self) -> Iterator[None]:
        """Asserts that what happens inside moves nothing."""
        before = self.snapshot()
        yield
        assert self.snapshot() == before
