"""What is lent, being promoted, on the device and asked for. No thread, no lock: the queue brings those."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any

from forebay.wire import HostError, KeyGone, Lend


@dataclasses.dataclass(frozen=True, slots=True)
class OnDevice:
    """A promoted micro-batch.

    Attributes:
        tree: The sender's containers and static values, arrays on the device.
        host_bytes: Bytes of its leaves on the host.
        promote_s: Seconds that the transfer took.
    """

    tree: Any
    host_bytes: int
    promote_s: float


Entry = OnDevice | Exception
"""What a promotion ended in; an exception belongs to whoever takes the micro-batch."""


class PromotionError(HostError):
    """A micro-batch could not be promoted for a reason that may pass; it stays in its slot, and is next again."""


@dataclasses.dataclass(slots=True)
class _Promotion:
    """The promotion under way."""

    lend: Lend
    attempt: str = ""


class Promotions:
    """The books of an attached queue.

    Args:
        ahead: Promoted micro-batches that may wait for their turn.
    """

    def __init__(self, ahead: int) -> None:
        self._ahead = ahead
        self._lent: OrderedDict[int, Lend] = OrderedDict()
        self._newest: dict[int, int] = {}
        self._under_way: _Promotion | None = None
        self._promoted: OrderedDict[str, Entry] = OrderedDict()
        self._to_try_again: dict[str, Lend] = {}
        self._unfinished: dict[str, str] = {}
        self._credit_used = 0
        self._wanted: list[str] = []
        self._was_asked = False
        self._gone: dict[str, KeyGone] = {}

    def __repr__(self) -> str:
        return (
            f"lent={[lend.key for lend in self._lent.values()]}, promoted={list(self._promoted)}, "
            f"unfinished={list(self._unfinished)}"
        )

    # What the daemon says, and what it is told.

    def attached(self, *, same_pool: bool) -> None:
        """Demand counts from zero again; with another pool, what was lent is no more."""
        if not same_pool:
            self._lent.clear()
            self._newest.clear()
            self._to_try_again.clear()
        self._credit_used = 0

    def lent(self, lend: Lend) -> None:
        """Notes a lend, once a slot and generation.

        A daemon that was restarted lends again what it does not know to be released. The release is on its way;
        a second promotion would train the micro-batch twice.
        """
        self._credit_used += lend.on_credit
        if self._newest.get(lend.slot) != lend.generation:
            self._newest[lend.slot] = lend.generation
            self._lent[lend.slot] = lend

    def gone(self, notice: KeyGone) -> None:
        """Notes that a wanted key will never come."""
        if notice.key in self._wanted:
            self._gone[notice.key] = notice

    def held(self) -> tuple[tuple[int, int], ...]:
        """Returns (slot, generation) of what is lent and not released."""
        under_way = [self._under_way.lend] if self._under_way else []
        lends = [*self._lent.values(), *self._to_try_again.values(), *under_way]
        return tuple((lend.slot, lend.generation) for lend in lends)

    def on_device(self) -> tuple[tuple[str, str], ...]:
        """Returns (key, attempt) of what is on the device, or about to be, and not finished."""
        under_way = {self._under_way.lend.key: self._under_way.attempt} if self._under_way else {}
        return tuple((self._unfinished | under_way).items())

    def demand(self) -> tuple[int, tuple[str, ...], bool]:
        """Returns the credit total, the wanted keys, and whether any of it is unmet.

        Nothing is asked for before the first take: who attaches only to look should cost no micro-batch.
        """
        waiting = len(self._lent) + len(self._promoted) + (self._under_way is not None)
        room = max(0, self._ahead - waiting) if self._was_asked else 0
        return self._credit_used + room, tuple(self._wanted), bool(room or self._wanted)

    # What the promoter does.

    def begin(self) -> Lend | None:
        """Chooses the next lend to promote: a wanted key at once, others in order while there is room."""
        has_room = len(self._promoted) < self._ahead
        for lend in self._lent.values():
            if has_room or lend.key in self._wanted:
                del self._lent[lend.slot]
                self._under_way = _Promotion(lend)
                return lend
        return None

    def name_attempt(self, attempt: str) -> None:
        """Notes the attempt of the promotion under way, as its slot tells it."""
        if self._under_way is not None:
            self._under_way.attempt = attempt

    def end(self, entry: Entry) -> None:
        """Notes what the promotion under way ended in."""
        assert self._under_way is not None
        lend, attempt = self._under_way.lend, self._under_way.attempt
        self._under_way = None
        self._promoted[lend.key] = entry
        if isinstance(entry, OnDevice):
            self._unfinished[lend.key] = attempt
        elif isinstance(entry, PromotionError):
            self._to_try_again[lend.key] = lend

    # What the trainer does.

    def ask(self) -> None:
        """Notes that somebody takes micro-batches."""
        self._was_asked = True

    def want(self, key: str) -> None:
        """Asks for a key out of order."""
        self._gone.pop(key, None)
        self._wanted.append(key)

    def unwant(self, key: str) -> None:
        """Takes a request for a key back."""
        self._wanted.remove(key)

    def take(self, key: str | None) -> tuple[str, Entry] | KeyGone | None:
        """Hands out a promoted micro-batch.

        Args:
            key: Which one; None for the first that nobody else asked for by its key.

        Returns:
            Its key and entry, a notice that it will never come, or None while it is not there.
        """
        if key is None:
            key = next((key for key in self._promoted if key not in self._wanted), None)
        if key is None:
            return None
        if key not in self._promoted:
            return self._gone.pop(key, None)
        if key in self._to_try_again:
            lend = self._to_try_again.pop(key)
            self._lent[lend.slot] = lend
            self._lent.move_to_end(lend.slot, last=False)
        return key, self._promoted.pop(key)

    def finish(self, key: str) -> str:
        """Notes that a micro-batch is consumed or given up; returns its attempt."""
        return self._unfinished.pop(key, "")

    def drop_promoted(self) -> None:
        """Lets go of what nobody has taken."""
        self._promoted.clear()
