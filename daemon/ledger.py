"""The ledger: every decision of the daemon, without a socket, a mapping or a clock.

Events go in (a message, a slot that is full, a lock that became free, a tick), each with the time; actions come
out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forebay.shm import Outcome, SlotTable
from forebay.wire import (
    TRUSTED,
    Abandon,
    Advance,
    Arrivals,
    Attach,
    Await,
    Client,
    ControlRequest,
    DataProtection,
    Detach,
    Drain,
    Event,
    FindPool,
    Finished,
    Forget,
    GetEvents,
    GetStatus,
    Goodbye,
    Hello,
    Incoming,
    Inspection,
    MicroBatchState,
    Offer,
    Order,
    Pause,
    Peek,
    Peer,
    Promoted,
    RefusalCode,
    Reset,
    Resume,
    Status,
    TrainerRequest,
    Want,
)

from .actions import Action, Address, Level, Reply
from .answers import About, Answers
from .attaching import Attaching
from .book import Book
from .dropping import Dropping
from .figures import Figures, figures_of
from .filling import Filling
from .inheritance import Inheritance
from .inspecting import Inspecting, ToldMoments
from .ledger_settings import LedgerSettings
from .lending import Lending
from .micro_batch import FoundSlot
from .operating import Operating
from .outbox import Named
from .rights import lacking
from .staging import Staging
from .staleness import Staleness
from .waiting_line import WaitingLine


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
        self._book = book = Book(settings, slots, incoming, me, epoch)
        about = About(
            software=software,
            pool=pool,
            data_endpoint=data_endpoint,
            data_protection=data_protection,
            started=now,
        )
        self._staleness = Staleness(book)
        self._answers = Answers(book, self._staleness, about)
        self._lending = Lending(book, self._staleness)
        self._attaching = Attaching(book, self._staleness, self._lending)
        self._filling = Filling(book, self._lending)
        self._line = WaitingLine(book, self._filling)
        self._staging = Staging(book, self._staleness, self._line, self._filling)
        self._dropping = Dropping(book)
        self._inspecting = Inspecting(book, self._staleness)
        self._operating = Operating(book, self._line, self._lending)

    def __repr__(self) -> str:
        return f"Ledger({self._book.slots!r}, queues={list(self._book.queues)!r})"

    @property
    def incoming(self) -> Incoming:
        """Which chunks are wanted."""
        return self._book.incoming

    @property
    def is_filling(self) -> bool:
        """Whether any micro-batch that has a slot is still on its way into it."""
        on_its_way = (MicroBatchState.OFFERED, MicroBatchState.FILLING)
        return any(batch.slot >= 0 and batch.state in on_its_way for batch in self._book.batches.values())

    @property
    def why_not_ready(self) -> str:
        """Why no new offers are taken; empty if they are."""
        return self._book.why_draining if self._book.draining else ""

    def figures(self, now: float) -> Figures:
        """Returns what there is and what was counted, for metrics."""
        return figures_of(self._book, now)

    def status(self, now: float) -> Status:
        """Returns what there is, for people."""
        return self._answers.described(0, now)

    def told(self, after: int, limit: int, now: float) -> ToldMoments:
        """Returns what happened, for another thread to tell in words.

        Args:
            after: Number of the last moment that is known already; -1 for the newest that there are.
            limit: How many at most.
            now: Monotonic second.
        """
        return self._inspecting.told(after, limit, now)

    def adopt(
        self,
        found_slots: Sequence[FoundSlot],
        outcomes: Sequence[Outcome],
        holders: Mapping[str, Peer],
        now: float,
    ) -> list[Action]:
        """Takes over what an adopted pool holds; called once, before any other event.

        Args:
            found_slots: The slots with a complete micro-batch.
            outcomes: The journal, oldest first.
            holders: Who has something of it, by the names of their locks, as far as that is known.
            now: Monotonic second.
        """
        self._book.out.now = now
        Inheritance(outcomes, holders).enter(self._book, self._attaching, found_slots, now)
        self._staleness.adopted(now)
        return self._book.out.take()

    @property
    def holders(self) -> set[str]:
        """Names of the locks of the trainers that are attached, or have something."""
        return {attachment.holder for attachment in self._book.attachments}

    # Events from peers.

    def control(
        self, sender: Address, request: ControlRequest, now: float, client: Client = TRUSTED
    ) -> list[Action]:
        """Handles a message from an orchestrator or inspector, as far as its client may say it."""
        self._book.out.now = now
        words = lacking(client, request)
        if words:
            about = self._book.named(request.queue, request.key) if isinstance(request, Offer) else Named()
            self._book.out.refuse(sender, request.id, RefusalCode.NOT_ALLOWED, words, **about)
        elif isinstance(request, Hello):
            self._answers.hello(sender, request, now)
        elif not self._book.peers.hear(sender, now):
            self._book.out.ask_for_hello(sender, request.id)
        else:
            self._known_control(sender, request, now, client)
        return self._decided(now)

    def _known_control(self, sender: Address, request: ControlRequest, now: float, client: Client) -> None:
        match request:  # what comes with each micro-batch first
            case Offer():
                self._staging.offer(sender, request, now, client)
            case Await():
                self._answers.wait(sender, request, now)
            case Abandon():
                self._dropping.abandon(sender, request, now)
            case Reset():
                self._dropping.reset(sender, request, now)
            case Advance():
                self._staleness.advance(sender, request, now)
            case GetStatus() | Peek() | GetEvents():
                self._inspect(sender, request, now)
            case Drain() | Pause() | Resume() | Forget():
                self._operate(sender, request, now)

    def _inspect(self, sender: Address, request: Inspection, now: float) -> None:
        if self._book.is_short_of_memory:
            # The longest answers there are, and nobody tells whether those before were read.
            words = f"{self._book.memory_words}; end inspectors that read nothing, or raise max_private_bytes"
            self._book.out.refuse(sender, request.id, RefusalCode.TOO_MANY, words)
            return
        match request:
            case GetStatus():
                self._answers.status(sender, request, now)
            case Peek():
                self._inspecting.peek(sender, request, now)
            case GetEvents():
                self._inspecting.events(sender, request, now)

    def _operate(self, sender: Address, request: Order, now: float) -> None:
        match request:
            case Drain():
                self._operating.drain(sender, request, now)
            case Pause():
                self._operating.pause(sender, request)
            case Resume():
                self._operating.resume(sender, request, now)
            case Forget():
                self._operating.forget(sender, request, now)

    def trainer(
        self, sender: Address, request: TrainerRequest, now: float, *, holder_fault: str = ""
    ) -> list[Action]:
        """Handles a message from a trainer.

        Args:
            sender: Its connection.
            request: What it says.
            now: Monotonic second.
            holder_fault: Why the lock that an `Attach` names cannot stand for the trainer; empty if it can.
        """
        self._book.out.now = now
        match request:
            case FindPool():
                self._answers.find_pool(sender, request)
            case Attach():
                self._attaching.attach(sender, request, now, holder_fault)
            case Want():
                self._lending.want(sender, request, now)
            case Promoted():
                self._lending.promoted(sender, request, now)
            case Finished():
                self._lending.finished(sender, request, now)
            case Detach():
                self._attaching.detach(sender, request, now)
        return self._decided(now)

    def unreadable(self, sender: Address, words: str) -> list[Action]:
        """Hears that a peer sent bytes that are no message."""
        self._book.out.refuse(sender, 0, RefusalCode.BAD_REQUEST, words)
        return self._book.out.take()

    def filled(self, arrivals: Arrivals, now: float) -> list[Action]:
        """Hears that the last chunk of a micro-batch lies in its slot, all checksums right."""
        self._book.out.now = now
        self._filling.filled(arrivals, now)
        return self._decided(now)

    # Events from this host.

    def reserved(self, slot: int, file_bytes: int, now: float) -> list[Action]:
        """Hears that a slot's file has grown to `file_bytes`."""
        self._book.out.now = now
        self._line.reserved(slot, file_bytes, now)
        return self._book.out.take()

    def reserve_failed(self, slot: int, words: str, now: float) -> list[Action]:
        """Hears that a slot's file could not grow, and why."""
        self._book.out.now = now
        self._line.reserve_failed(slot, words, now)
        return self._decided(now)

    def memory(self, private_bytes: int) -> None:
        """Hears how much private memory this process has."""
        self._book.private_bytes = private_bytes

    def holder_free(self, holder: str, now: float) -> list[Action]:
        """Hears that nobody holds a trainer's lock any more."""
        self._book.out.now = now
        self._attaching.holder_free(holder, now)
        self._staleness.sweep(now)
        return self._decided(now)

    def change(self, settings: LedgerSettings, now: float) -> list[Action]:
        """Goes on with other settings, reloadable ones alone; ends what has become stale by them."""
        self._book.out.now = now
        self._book.change(settings)
        self._staleness.sweep(now)
        return self._decided(now)

    def tick(self, now: float) -> list[Action]:
        """Ends what is over at `now`; due at `next_deadline`."""
        self._book.out.now = now
        self._staleness.sweep(now)
        self._filling.expire(now)
        self._line.expire(now)
        self._book.waits.expire(now)
        self._inspecting.serve(now)
        return self._decided(now)

    def _decided(self, now: float) -> list[Action]:
        """Returns what an event led to, what has become FREE given to the offers that wait for it."""
        self._line.serve(now)
        return self._book.out.take()

    def next_deadline(self) -> float | None:
        """Returns the monotonic second at which `tick` has something to end, or None."""
        waiting = (batch.deadline for batch in self._book.waiting())
        others = (*self._book.waits.deadlines(), *self._staleness.deadlines(), *self._inspecting.deadlines())
        return min((*self._filling.deadlines(), *waiting, *others), default=None)

    def drain(self, now: float) -> list[Action]:
        """Takes no new offers from now on; what is filling may finish."""
        self._book.out.now = now
        self._book.is_stopping = True
        self._book.out.log(Level.INFO, Event.DRAIN, by="a signal")
        self._line.drain(now)
        return self._book.out.take()

    def goodbye(self, *, kept: bool) -> list[Action]:
        """Tells every peer that the daemon stops."""
        message = Goodbye(kept=kept)
        for queue in self._book.queues if not kept else ():
            for batch in queue.ready:
                self._book.out.log(Level.WARNING, Event.DISCARD, queue=queue.name, key=batch.key)
        trainers = [queue.attachment.address for queue in self._book.queues if queue.attachment]
        self._book.out.do(*(Reply(address, message) for address in self._book.peers))
        self._book.out.do(*(Reply(address, message) for address in trainers if address is not None))
        return self._book.out.take()
