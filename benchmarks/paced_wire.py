"""A wire whose rate follows a trace: what was seen on a real one, micro-batch by micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.orchestrator_client.pace import Pace
from forebay.wire import UsageError


class TracedPace(Pace):
    """A wire that carries each micro-batch in a time of its own.

    Its rate changes after as many bytes as a micro-batch has, whoever sends them. After the last it starts over.

    Args:
        seconds: On the wire, for each micro-batch in turn.
        payload_bytes: Bytes that each of them sends.

    Raises:
        UsageError: There is no time, one is negative or endless, or the micro-batches have no bytes.
    """

    def __init__(self, seconds: Sequence[float], payload_bytes: int) -> None:
        super().__init__()
        if not seconds or not all(0 <= second < float("inf") for second in seconds):
            raise UsageError("a trace needs the seconds of each micro-batch", got=seconds, limit="0 or more each")
        if payload_bytes < 1:
            raise UsageError("a micro-batch on a trace has no bytes", got=payload_bytes, limit="1 or more")
        self._seconds = tuple(seconds)
        self._payload_bytes = payload_bytes
        self._carried_bytes = 0

    def __repr__(self) -> str:
        return f"TracedPace({len(self._seconds)} micro-batches of {self._payload_bytes} bytes)"

    def _carry_s(self, nbytes: int) -> float:
        before_s = self._since_begin_s()
        self._carried_bytes += nbytes
        return self._since_begin_s() - before_s

    def _since_begin_s(self) -> float:
        """Returns the seconds that the wire was busy so far."""
        whole, rest = divmod(self._carried_bytes, self._payload_bytes)
        rounds, index = divmod(whole, len(self._seconds))
        part_s = self._seconds[index] * rest / self._payload_bytes
        return rounds * sum(self._seconds) + sum(self._seconds[:index]) + part_s
