"""Any order in which chunks are claimed and settled and grants are closed, beside a plain model."""

from __future__ import annotations

import dataclasses
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from forebay.wire import Arrivals, ChunkFault, Incoming

from .arriving import LENGTH, arrivals_of, header_of


@dataclasses.dataclass
class Model:
    """What is known of one `Arrivals`, in the plainest form."""

    arrivals: Arrivals
    arrived: set[int] = dataclasses.field(default_factory=set)
    claimed: set[int] = dataclasses.field(default_factory=set)
    last_at: float = 0.0


class Histories(RuleBasedStateMachine):
    """Opens, claims, settlements and closes in any order, beside a model."""

    def __init__(self) -> None:
        super().__init__()
        self.incoming = Incoming()
        self.models: list[Model] = []
        self.open: dict[int, Model] = {}
        self.faults: Counter[ChunkFault] = Counter()
        self.now = 0.0

    @rule(slot=st.integers(0, 1), spans=st.integers(1, 4))
    def opens(self, slot: int, spans: int) -> None:
        model = Model(arrivals_of(spans, slot=slot, generation=len(self.models)))
        self.models.append(model)
        self.open[slot] = model
        self.incoming.open(model.arrivals)

    @rule(data=st.data(), span=st.integers(0, 3))
    def claims(self, data: st.DataObject, span: int) -> None:
        if not self.models:
            return
        model = data.draw(st.sampled_from(self.models[-3:]))
        got = self.incoming.claim(header_of(model.arrivals, span))
        spans = -(-model.arrivals.total_bytes // LENGTH)
        if self.open.get(model.arrivals.slot) is not model:
            self._thrown_away(got, ChunkFault.NOT_GRANTED)
        elif span >= spans:
            self._thrown_away(got, ChunkFault.WRONG_SPAN)
        elif span in model.arrived | model.claimed:
            self._thrown_away(got, ChunkFault.REPEATED)
        else:
            assert got is model.arrivals
            model.claimed.add(span)

    def _thrown_away(self, got: Arrivals | ChunkFault, expected: ChunkFault) -> None:
        assert got is expected
        self.incoming.throw_away(expected)
        self.faults[expected] += 1

    @rule(data=st.data(), fault=st.sampled_from([None, None, ChunkFault.WRONG_CHECKSUM]))
    def settles(self, data: st.DataObject, fault: ChunkFault | None) -> None:
        claims = [(model, span) for model in self.models for span in sorted(model.claimed)]
        if not claims:
            return
        model, span = data.draw(st.sampled_from(claims))
        self.now += 1.0
        is_last = self.incoming.settle(model.arrivals, header_of(model.arrivals, span), fault, self.now)
        model.claimed.remove(span)
        if fault is None:
            model.arrived.add(span)
            model.last_at = self.now
        assert is_last == (fault is None and len(model.arrived) * LENGTH > model.arrivals.total_bytes)

    @rule(data=st.data())
    def closes(self, data: st.DataObject) -> None:
        if self.models:
            model = data.draw(st.sampled_from(self.models))
            self.incoming.close(model.arrivals)
            if self.open.get(model.arrivals.slot) is model:
                del self.open[model.arrivals.slot]

    @invariant()
    def all_is_as_the_model_says(self) -> None:
        assert self.incoming.faults() == self.faults
        for model in self.models:
            arrivals, spans = model.arrivals, -(-model.arrivals.total_bytes // LENGTH)
            missing = [span for first, count in arrivals.missing() for span in range(first, first + count)]
            assert missing == sorted(set(range(spans)) - model.arrived)
            assert arrivals.is_complete == (not missing)
            assert arrivals.is_written_to == bool(model.claimed)
            assert self.incoming.wait_until_left(arrivals, 0.0) == (not model.claimed)
            assert arrivals.last_at == model.last_at
            assert arrivals.received_bytes == sum(header_of(arrivals, span).length for span in model.arrived)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=40)
