"""The ledger: every decision of the daemon, without a socket, a mapping or a clock.

Events go in (a message, a slot that is full, a lock that became free, a tick), each with the time; actions come
out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from forebay.shm import Outcome, SlotTable
from forebay.wire import (
    GONE,
    MAX_POLICY_VERSION,
    PROTOCOL_VERSION,
    TRUSTED,
    Abandon,
    Advance,
    Advanced,
    Arrivals,
    Attach,
    Await,
    Client,
    ControlRequest,
    DataProtection,
    Detach,
    FindPool,
    Finished,
    GetStatus,
    Goodbye,
    Hello,
    Incoming,
    MicroBatchState,
    Offer,
    Peer,
    PoolFound,
    Promoted,
    RefusalCode,
    Reset,
    Right,
    TrainerRequest,
    Want,
    Welcome,
    printable,
)

from .actions import Action, Address, Level, Reply
from .book import Book, LedgerSettings, shortened
from .inheritance import Inheritance
from .lending import Lending
from .micro_batch import FoundSlot, MicroBatch
from .staging import Staging
from .staleness import Staleness
from .status import describe


class Ledger:
    """Decides.

    Args:
        settings: Limits, leases and how much is remembered.
        slots: Every slot, as created or found.
        incoming: Which chunks are wanted; the threads that receive them look there.
        me: This daemon.
        epoch: Names this run of the daemon.
        software: Version of this package.
        pool: The pool's folder, as told to trainers.
        data_endpoint: Where chunks go, as told to orchestrators.
        data_protection: What guards it, as told to them.
        now: Monotonic second of the start.
    """

    def __init__(
        self,
        settings: LedgerSettings,
        slots: SlotTable,
        incoming: Incoming,
        *,
        me: Peer,
        epoch: str,
        software: str,
        pool: str,
        data_endpoint: str,
        data_protection: DataProtection = DataProtection.NONE,
        now: float,
    ) -> None:
        self._book = Book(settings, slots, incoming, me, epoch)
        self._staleness = Staleness(self._book)
        self._lending = Lending(self._book, self._staleness)
        self._staging = Staging(self._book, self._staleness, self._when_published)
        self._software = software
        self._pool = pool
        self._data_endpoint = data_endpoint
        self._data_protection = data_protection
        self._started = now

    def __repr__(self) -> str:
        return f"Ledger({self._book.slots!r}, queues={list(self._book.queues.values())!r})"

    @property
    def incoming(self) -> Incoming:
        """Which chunks are wanted."""
        return self._book.incoming

    @property
    def is_filling(self) -> bool:
        """Whether any micro-batch that has a slot is still on its way into it."""
        on_its_way = (MicroBatchState.OFFERED, MicroBatchState.FILLING)
        return any(batch.slot >= 0 and batch.state in on_its_way for batch in self._book.batches.values())

    def adopt(self, found_slots: Sequence[FoundSlot], outcomes: Sequence[Outcome], now: float) -> list[Action]:
        """Takes over what an adopted pool holds, slots and journal; called once, before any other event."""
        Inheritance(outcomes).enter(self._book, self._lending, found_slots, now)
        self._staleness.adopted(now)
        return self._book.take_actions()

    # Events from peers.

    def control(
        self, sender: Address, request: ControlRequest, now: float, client: Client = TRUSTED
    ) -> list[Action]:
        """Handles a message from an orchestrator or inspector, as far as its client may say it."""
        lacking = _lacking(client, request)
        if lacking:
            self._book.refuse(sender, request.id, RefusalCode.NOT_ALLOWED, lacking)
        elif isinstance(request, Hello):
            self._hello(sender, request)
        elif sender not in self._book.peers:
            words = "say hello first; the daemon may have restarted"
            self._book.refuse(sender, request.id, RefusalCode.HELLO_FIRST, words)
        else:
            self._book.peers.move_to_end(sender)
            self._known_control(sender, request, now, client)
        return self._book.take_actions()

    def _known_control(self, sender: Address, request: ControlRequest, now: float, client: Client) -> None:
        match request:
            case Offer():
                self._staging.offer(sender, request, now, client)
            case Abandon():
                self._staging.abandon(sender, request, now)
            case Reset():
                self._staging.reset(sender, request, now)
            case Advance():
                self._advance(sender, request, now)
            case Await():
                self._await(sender, request, now)
            case GetStatus():
                status = describe(
                    self._book,
                    self._staleness,
                    request.id,
                    software=self._software,
                    pool=self._pool,
                    started=self._started,
                    now=now,
                )
                self._book.do(Reply(sender, status))

    def trainer(self, sender: Address, request: TrainerRequest, now: float) -> list[Action]:
        """Handles a message from a trainer."""
        freed = False
        match request:
            case FindPool():
                self._find_pool(sender, request)
            case Attach():
                freed = self._lending.attach(sender, request, now)
            case Want():
                self._lending.want(sender, request, now)
            case Promoted():
                freed = self._lending.promoted(sender, request, now)
            case Finished():
                freed = self._lending.finished(sender, request, now)
            case Detach():
                self._lending.detach(sender, request, now)
        if freed:
            self._staging.serve_waiting(now)
        return self._book.take_actions()

    def unreadable(self, sender: Address, words: str) -> list[Action]:
        """Hears that a peer sent bytes that are no message."""
        self._book.refuse(sender, 0, RefusalCode.BAD_REQUEST, words)
        return self._book.take_actions()

    def filled(self, arrivals: Arrivals, now: float) -> list[Action]:
        """Hears that the last chunk of a micro-batch lies in its slot, all checksums right."""
        self._staging.filled(arrivals, now)
        return self._book.take_actions()

    # Events from this host.

    def reserved(self, slot: int, file_bytes: int, now: float) -> list[Action]:
        """Hears that a slot's file has grown to `file_bytes`."""
        self._staging.reserved(slot, file_bytes, now)
        return self._book.take_actions()

    def reserve_failed(self, slot: int, words: str, now: float) -> list[Action]:
        """Hears that a slot's file could not grow, and why."""
        self._staging.reserve_failed(slot, words, now)
        return self._book.take_actions()

    def holder_free(self, holder: str, now: float) -> list[Action]:
        """Hears that nobody holds a trainer's lock any more."""
        self._lending.holder_free(holder, now)
        self._staleness.sweep(now)
        self._staging.serve_waiting(now)
        return self._book.take_actions()

    def tick(self, now: float) -> list[Action]:
        """Ends what is over at `now`; due at `next_deadline`."""
        self._staleness.sweep(now)
        self._staging.expire(now)
        self._book.expire_waits(now)
        return self._book.take_actions()

    def next_deadline(self) -> float | None:
        """Returns the monotonic second at which `tick` has something to end, or None."""
        book = self._book
        lease_s = book.settings.fill_lease_s
        filling = (batch.silent_at(lease_s) for batch in book.filling.values())
        waiting = (batch.deadline for batch in book.waiting())
        return min((*filling, *waiting, *book.wait_deadlines(), *self._staleness.deadlines()), default=None)

    def drain(self, now: float) -> list[Action]:
        """Takes no new offers from now on; what is filling may finish."""
        self._book.draining = True
        self._staging.refuse_waiting(now)
        return self._book.take_actions()

    def goodbye(self, *, kept: bool) -> list[Action]:
        """Tells every peer that the daemon stops."""
        message = Goodbye(kept=kept)
        for queue in self._book.queues.values() if not kept else ():
            for batch in queue.ready:
                self._book.log(Level.WARNING, "discard", queue=queue.name, key=batch.key)
        trainers = [queue.attachment.address for queue in self._book.queues.values() if queue.attachment]
        self._book.do(*(Reply(address, message) for address in self._book.peers))
        self._book.do(*(Reply(address, message) for address in trainers if address is not None))
        return self._book.take_actions()

    # Answers.

    def _hello(self, sender: Address, request: Hello) -> None:
        book = self._book
        if request.version != PROTOCOL_VERSION:
            words = f"client speaks protocol {request.version}, daemon {PROTOCOL_VERSION}"
            book.refuse(sender, request.id, RefusalCode.VERSION, words)
            return
        book.peers[sender] = shortened(request.peer)
        while len(book.peers) > book.settings.max_peers:
            book.peers.popitem(last=False)
        welcome = Welcome(
            id=request.id,
            version=PROTOCOL_VERSION,
            software=self._software,
            epoch=book.epoch,
            peer=book.me,
            data_endpoint=self._data_endpoint,
            limits=book.settings.limits,
            data_protection=self._data_protection,
        )
        book.do(Reply(sender, welcome))

    def _find_pool(self, sender: Address, request: FindPool) -> None:
        found = PoolFound(
            id=request.id,
            version=PROTOCOL_VERSION,
            software=self._software,
            epoch=self._book.epoch,
            pool=self._pool,
        )
        self._book.do(Reply(sender, found))

    def _advance(self, sender: Address, request: Advance, now: float) -> None:
        book = self._book
        if not book.is_name(request.queue) or not 0 <= request.policy_version <= MAX_POLICY_VERSION:
            words = f"the queue's name is empty or too long, or the version not 0 to {MAX_POLICY_VERSION}"
            book.refuse(sender, request.id, RefusalCode.BAD_REQUEST, words)
            return
        if words := book.make_room_for_queue(request.queue):
            book.refuse(sender, request.id, RefusalCode.BAD_REQUEST, words)
            return
        queue = book.queue(request.queue)
        self._staleness.learn(queue, request.policy_version, now)
        present = queue.policy_version
        assert present is not None
        book.do(Reply(sender, Advanced(id=request.id, policy_version=present)))
        self._staging.serve_waiting(now)

    def _await(self, sender: Address, request: Await, now: float) -> None:
        if request.until in GONE:
            words = f"nobody can wait until a micro-batch is {request.until}; that is told to all who wait"
            self._book.refuse(sender, request.id, RefusalCode.BAD_REQUEST, words)
            return
        batch = self._book.find(request.queue, request.key)
        if batch is None:
            words = (
                f"no micro-batch {printable(request.key)!r} in queue {printable(request.queue)!r}; stage it first"
            )
            self._book.refuse(sender, request.id, RefusalCode.UNKNOWN_KEY, words)
            return
        self._book.wait_for(batch, sender, request.id, request.until, now)

    def _when_published(self, batch: MicroBatch, now: float) -> None:
        self._lending.lend(self._book.queue(batch.queue), now)


def _lacking(client: Client, request: ControlRequest) -> str:
    """Returns the words to refuse a request with that its client has no right to; empty if it has."""
    match request:
        case Offer() | Abandon() | Await() | Reset() | Advance():
            return client.lacks(Right.STAGE, request.queue)
        case GetStatus():
            return client.lacks(Right.INSPECT)
        case Hello():
            # It shows nothing that whoever has any right may not know.
            return "" if client.rights else client.lacks(Right.STAGE)
        case _:
            assert_never(request)
