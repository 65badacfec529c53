"""One micro-batch on its way into a slot, or into private memory: which spans have arrived."""

from __future__ import annotations

import enum
import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from .chunk import ChunkHeader
from .codec_names import CODECS
from .control import Granted
from .faults import Faults
from .spans import SpanTable

_MAX_RUNS = 1024


class ChunkFault(enum.StrEnum):
    """Why a chunk's bytes are thrown away; each is a counter."""

    MALFORMED = "chunk_malformed"
    NOT_GRANTED = "chunk_not_granted"
    WRONG_SPAN = "chunk_wrong_span"
    REPEATED = "chunk_repeated"
    WRONG_LENGTH = "chunk_wrong_length"
    WRONG_CODEC = "chunk_wrong_codec"
    DAMAGED = "chunk_damaged"
    WRONG_CHECKSUM = "chunk_wrong_checksum"


class Received(NamedTuple):
    """What has arrived in one codec, right and for the first time.

    Attributes:
        chunks: How many.
        wire_bytes: As they travelled, without headers.
        decoded_bytes: As they lie in their places.
    """

    chunks: int = 0
    wire_bytes: int = 0
    decoded_bytes: int = 0


class Arrivals:
    """The spans of a granted micro-batch that have arrived and those that are missing.

    A chunk must match the layout's span exactly, so ranges can neither overlap nor leave gaps. `Incoming` moves
    it; others may read it meanwhile, on any thread: what they read was true a moment ago.

    Args:
        slot: Slot index, or the number by which a receiver without slots knows it.
        generation: Slot generation.
        token: Secret of the grant.
        spans: From the layout.

    Attributes:
        received_bytes: Bytes that have arrived, as decoded.
        last_at: Monotonic second at which the last chunk arrived; 0 before the first.
    """

    def __init__(self, slot: int, generation: int, token: int, spans: SpanTable) -> None:
        self.slot = slot
        self.generation = generation
        self.token = token
        self.received_bytes = 0
        self.last_at = 0.0
        self._spans = spans
        self._arrived = bytearray(len(spans))
        self._missing_count = len(spans)
        self._claimed: set[int] = set()

    def __repr__(self) -> str:
        arrived = len(self._spans) - self._missing_count
        return f"Arrivals(slot={self.slot}, generation={self.generation}, {arrived}/{len(self._spans)} spans)"

    @property
    def total_bytes(self) -> int:
        """Bytes of all spans."""
        return self._spans.total_bytes

    @property
    def is_complete(self) -> bool:
        """Whether every span has arrived."""
        return self._missing_count == 0

    @property
    def is_written_to(self) -> bool:
        """Whether somebody has claimed a span and not settled it yet."""
        return bool(self._claimed)

    def claim(self, header: ChunkHeader) -> ChunkFault | None:
        """Reserves a chunk's span for whoever writes its bytes there, or tells what is wrong with it.

        `settle` must follow a claim that was granted.
        """
        if (header.generation, header.token) != (self.generation, self.token):
            return ChunkFault.NOT_GRANTED
        if header.span >= len(self._spans):
            return ChunkFault.WRONG_SPAN
        span = self._spans[header.span]
        if (header.offset, header.length) != (span.offset, span.length):
            return ChunkFault.WRONG_SPAN
        if header.codec >= len(CODECS):
            return ChunkFault.WRONG_CODEC
        if self._arrived[header.span] or header.span in self._claimed:
            return ChunkFault.REPEATED
        self._claimed.add(header.span)
        return None

    def settle(self, header: ChunkHeader, *, arrived: bool, now: float) -> None:
        """Notes whether the bytes of a claimed span lie in their place now, checked."""
        self._claimed.remove(header.span)
        if arrived:
            self._arrived[header.span] = 1
            self._missing_count -= 1
            self.received_bytes += header.length
            self.last_at = now

    def granted(self, *, request_id: int, attempt: str, chunk_bytes: int) -> Granted:
        """Makes the answer that tells a sender what to send.

        Args:
            request_id: Of the request that it answers.
            attempt: Of the stage call.
            chunk_bytes: By which the body was cut.
        """
        return Granted(
            id=request_id,
            attempt=attempt,
            slot=self.slot,
            generation=self.generation,
            token=self.token,
            missing=self.first_missing(),
            received_bytes=self.received_bytes,
            chunk_bytes=chunk_bytes,
        )

    def first_missing(self) -> tuple[tuple[int, int], ...]:
        """Returns as many of the missing runs as fit a message; what is sent for them leads to the next."""
        return tuple(itertools.islice(self.missing(), _MAX_RUNS))

    def missing(self) -> Iterator[tuple[int, int]]:
        """Yields (first, count) runs of spans that have not arrived."""
        first = self._arrived.find(0)
        while first >= 0:
            end = self._arrived.find(1, first)
            end = len(self._arrived) if end < 0 else end
            yield first, end - first
            first = self._arrived.find(0, end)


class Incoming:
    """All that is on its way in, by the number that chunks name it by. Safe from any thread.

    Whoever receives a chunk claims its span, writes, and settles. Whoever decides closes what is over; memory that
    is to be used again must then wait until nobody writes to it any more.

    Attributes:
        peer_faults: Counts chunks that are thrown away, and what else comes of peers at the sockets to no avail.
    """

    def __init__(self) -> None:
        self.peer_faults = Faults()
        self._open: dict[int, Arrivals] = {}
        self._received = [Received() for _ in CODECS]
        self._settled = threading.Condition()

    def open(self, arrivals: Arrivals) -> None:
        """Has chunks wanted from now on."""
        with self._settled:
            self._open[arrivals.slot] = arrivals

    def close(self, arrivals: Arrivals) -> None:
        """Has no more chunks wanted; one that was claimed may still be written."""
        with self._settled:
            if self._open.get(arrivals.slot) is arrivals:
                del self._open[arrivals.slot]

    def claim(self, header: ChunkHeader) -> Arrivals | ChunkFault:
        """Reserves a chunk's span for the caller, or tells why its bytes are not wanted."""
        with self._settled:
            arrivals = self._open.get(header.slot)
            if arrivals is None:
                return ChunkFault.NOT_GRANTED
            return arrivals.claim(header) or arrivals

    def settle(
        self,
        arrivals: Arrivals,
        header: ChunkHeader,
        fault: ChunkFault | None,
        now: float,
        wire_bytes: int | None = None,
    ) -> bool:
        """Ends a claim.

        Args:
            arrivals: From `claim`.
            header: The claimed chunk's.
            fault: What was wrong with its bytes; None if they lie in their place.
            now: Monotonic second.
            wire_bytes: That they had on the wire; None for as many as they have decoded.

        Returns:
            Whether it is complete by this chunk.
        """
        with self._settled:
            arrivals.settle(header, arrived=fault is None, now=now)
            if not arrivals.is_written_to:
                self._settled.notify_all()
            if fault is None:
                self._note_received(header, header.length if wire_bytes is None else wire_bytes)
            return fault is None and arrivals.is_complete

    def _note_received(self, header: ChunkHeader, wire_bytes: int) -> None:
        before = self._received[header.codec]
        self._received[header.codec] = Received(
            before.chunks + 1, before.wire_bytes + wire_bytes, before.decoded_bytes + header.length
        )

    def received(self) -> dict[str, Received]:
        """Returns what has arrived in each codec."""
        with self._settled:
            return dict(zip(CODECS, self._received, strict=True))

    def throw_away(self, fault: ChunkFault) -> None:
        """Counts a chunk whose bytes were not used."""
        self.peer_faults.count(fault)

    def faults(self) -> Counter[str]:
        """Returns how often each of `peer_faults` happened."""
        return self.peer_faults.counts()

    def wait_until_left(self, arrivals: Arrivals, timeout_s: float) -> bool:
        """Waits until nobody writes to what was closed; returns whether that is so now."""
        with self._settled:
            return self._settled.wait_for(lambda: not arrivals.is_written_to, timeout_s)
