"""What is to be sent to a data endpoint, where it is to arrive, and what becomes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from forebay.wire import (
    CODECS,
    RAW,
    Arrivals,
    ChunkFault,
    ChunkHeader,
    Incoming,
    Span,
    SpanTable,
    chunk_checksum,
    encode_chunk,
)

PATIENCE_S = 60.0
LENGTH = 4096
SPANS = 60


class CountedIncoming(Incoming):
    """Lets a test wait for chunks that are thrown away."""

    def __init__(self) -> None:
        super().__init__()
        self._thrown = threading.Semaphore(0)

    def throw_away(self, fault: ChunkFault) -> None:
        super().throw_away(fault)
        self._thrown.release()

    def wait_for_thrown(self, count: int) -> None:
        for number in range(count):
            assert self._thrown.acquire(timeout=PATIENCE_S), f"{number} of {count} chunks were thrown away"


class Memory:
    """What is to be sent, where it is to arrive, and what is told about it."""

    def __init__(self) -> None:
        # Expert ids, so that the codecs have something to do.
        ids = np.random.default_rng(5).integers(0, 512, SPANS * LENGTH // 2).astype(np.int16)
        self.sent = ids.tobytes()
        self.body = bytearray(len(self.sent))
        self.incoming = CountedIncoming()
        self.arrivals = Arrivals(0, 1, 2, SpanTable([Span(0, len(self.sent), 0, 1)], LENGTH))
        self.incoming.open(self.arrivals)
        self.completed: list[Arrivals] = []
        self.failures: list[BaseException] = []
        self.threads: set[str] = set()
        self._told = threading.Condition()

    def target(self, header: ChunkHeader) -> memoryview | None:
        self.threads.add(threading.current_thread().name)
        return memoryview(self.body)[header.offset : header.offset + header.length]

    def complete(self, arrivals: Arrivals) -> None:
        with self._told:
            self.completed.append(arrivals)
            self._told.notify_all()

    def failed(self, error: BaseException) -> None:
        with self._told:
            self.failures.append(error)
            self._told.notify_all()

    def wait_until(self, told: Callable[[], bool], what: str) -> None:
        with self._told:
            assert self._told.wait_for(told, PATIENCE_S), f"waited {PATIENCE_S} s for {what}"

    def wait_until_complete(self) -> None:
        self.wait_until(lambda: bool(self.completed), f"the rest of {self.arrivals}")

    def chunk(self, span: int, codec: str = RAW) -> list[bytes]:
        offset = span * LENGTH
        data = self.sent[offset : offset + LENGTH]
        names = {"slot": 0, "generation": 1, "token": 2, "codec": CODECS.index(codec)}
        checksum = chunk_checksum(data, offset)
        header = ChunkHeader(**names, span=span, length=LENGTH, offset=offset, checksum=checksum)
        encoded = None if codec == RAW else encode_chunk(codec, memoryview(data), 2)
        assert (encoded is None) == (codec == RAW)
        return [header.pack(), data if encoded is None else encoded]
