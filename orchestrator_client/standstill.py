"""When a sending has come to a standstill: something is sent, and nothing of it arrives."""

from __future__ import annotations

from typing import Final, NamedTuple

_SOON_S: Final = 5.0
"""After which a connection that never came about is looked at; ZeroMQ has dialled some fifty times by then."""
_PATIENCE: Final = 2.0
"""How many times `silence_s` a sending may stand still where a look finds nothing wrong. A link that is back is
used once a heartbeat has given the old connection up, which takes longer than `silence_s`; see wire/limits.py."""


class Why(NamedTuple):
    """What a look at a data endpoint has found.

    Attributes:
        words: What is wrong there; empty if nothing is.
        remedy: What to do about it.
        is_certain: Whether it will not come right by waiting.
        may_be_slow: Whether a slow link looks the same once its buffers are full.
    """

    words: str
    remedy: str
    is_certain: bool = False
    may_be_slow: bool = False


class Standstill:
    """How long nothing has arrived of what is sent, as far as the server's answers tell.

    Time counts from one answer to the next, and of that no more than two repeats take: while the server says
    nothing, or this process stands still, nobody knows what arrives. A silent server has a limit of its own.

    Args:
        retry_s: Seconds after which a server is asked again.
        silence_s: Seconds for which nothing may arrive.

    Attributes:
        seconds: For which nothing has arrived.
        received_bytes: Those that had arrived at the last answer.
    """

    def __init__(self, retry_s: float, silence_s: float) -> None:
        self._step_s = 2 * retry_s
        self._limits_s = (min(_SOON_S, silence_s), silence_s, _PATIENCE * silence_s)
        self._passed = 0
        self._has_connected = False
        self._heard_at: float | None = None
        self.seconds = 0.0
        self.received_bytes = 0

    def heard(self, received_bytes: int, now: float, *, is_sent: bool, has_connected: bool) -> bool:
        """Notes an answer.

        Args:
            received_bytes: Those that have arrived, as it says.
            now: Monotonic second.
            is_sent: Whether something is on its way, not held back by a turn or a rate.
            has_connected: Whether anything has ever left for the data endpoint.

        Returns:
            Whether it is time to look why, and to ask `is_over`.
        """
        since, self._heard_at = self._heard_at, now
        self._has_connected = has_connected
        has_grown = received_bytes > self.received_bytes
        self.received_bytes = received_bytes
        if has_grown:
            self.seconds, self._passed = 0.0, 0
        elif is_sent and since is not None:
            self.seconds += min(now - since, self._step_s)
        before, self._passed = self._passed, sum(self.seconds >= limit_s for limit_s in self._limits_s)
        return self._passed > before and (self._passed > 1 or not has_connected)

    def is_over(self, why: Why) -> bool:
        """Tells whether a sending is to end, after a look."""
        if self._passed == len(self._limits_s) or why.is_certain:
            return True
        is_explained = bool(why.words) and not (why.may_be_slow and self._has_connected)
        return self._passed > 1 and is_explained
