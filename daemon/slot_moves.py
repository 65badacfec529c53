"""The moves of slots, each with what the loop has to write or wait for because of it."""

from __future__ import annotations

from forebay.shm import SlotEvent, SlotState, SlotTable
from forebay.wire import Arrivals, Incoming

from .actions import AwaitWriters, WriteState
from .micro_batch import MicroBatch
from .outbox import Outbox


class SlotMoves:
    """Moves the slots of micro-batches.

    Args:
        slots: All slots.
        incoming: What the threads that receive look at.
        out: Where actions go.

    Attributes:
        filling: Slot index -> the micro-batch whose chunks are wanted there.
    """

    def __init__(self, slots: SlotTable, incoming: Incoming, out: Outbox) -> None:
        self._slots = slots
        self._incoming = incoming
        self._out = out
        self.filling: dict[int, MicroBatch] = {}

    def loan(self, batch: MicroBatch, slot_index: int) -> None:
        """Takes a FREE slot for a micro-batch."""
        slot = self._slots[slot_index]
        self._slots.apply(slot_index, slot.generation, SlotEvent.LOAN)
        batch.slot, batch.generation = slot_index, slot.generation

    def fill(self, batch: MicroBatch, arrivals: Arrivals) -> None:
        """Has chunks for a micro-batch that has a slot written there from now on."""
        batch.arrivals = arrivals
        self.filling[batch.slot] = batch
        self._incoming.open(arrivals)

    def stop_filling(self, batch: MicroBatch) -> None:
        """Has nothing more written to a slot; what is done to it afterwards waits for who still writes."""
        arrivals, batch.arrivals = batch.arrivals, None
        self.filling.pop(batch.slot, None)
        if arrivals is not None:
            self._incoming.close(arrivals)
            if not arrivals.is_complete:
                self._out.do(AwaitWriters(arrivals))

    def give_back(self, batch: MicroBatch, event: SlotEvent) -> None:
        """Frees a micro-batch's slot, if it has one."""
        if batch.slot < 0:
            return
        self.stop_filling(batch)
        self.apply(batch, event)
        batch.slot = -1

    def apply(self, batch: MicroBatch, event: SlotEvent, *, holder: str = "") -> None:
        """Moves a micro-batch's slot and has that recorded in its header."""
        slot = self._slots.apply(batch.slot, batch.generation, event)
        if slot.state is SlotState.FREE:
            self._out.do(WriteState(slot.index, slot.state))
        else:
            times = {"ready_at": batch.ready_at, "lent_at": batch.lent_at}
            self._out.do(WriteState(slot.index, slot.state, batch.sequence, holder, **times))
