"""A stand-in for a slower link between host and device: real transfers, filled up to a stated time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax

from forebay.trainer import JaxTransfer
from forebay.trainer.host_tree import PlacedTree
from forebay.trainer.transfer import OnDevice
from forebay.wire import UsageError


class SlowLinkTransfer(JaxTransfer):
    """Transfers that take as long as over a link of a stated rate, or longer if the real one does.

    The device has the arrays when the real transfer is done; the wait comes after, in `complete`. So whoever runs
    the transfer keeps the link, and the slot that it reads from, as long as over the slower link. One at a time,
    as the staging queue does it.

    Args:
        copy_s: Seconds for a micro-batch of `payload_bytes`; one of other bytes takes its share.
        payload_bytes: Bytes of all leaves of such a micro-batch.
        shardings: See `JaxTransfer`.
        clock: Tells the monotonic second.
        sleep: Waits for so many seconds.

    Attributes:
        transfers: How many were completed.
        late_transfers: How many of these really took longer than was stated; their times are the real ones.
        late_s: By how many seconds, all of them together.

    Raises:
        UsageError: The time is negative or endless, or there are no bytes.
    """

    def __init__(
        self,
        copy_s: float,
        payload_bytes: int,
        shardings: Any = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(shardings)
        if not 0 <= copy_s < float("inf"):
            raise UsageError("a link cannot take so long for a micro-batch", got=copy_s, limit="0 s or more")
        if payload_bytes < 1:
            raise UsageError("a micro-batch on a link has no bytes", got=payload_bytes, limit="1 or more")
        self.transfers = 0
        self.late_transfers = 0
        self.late_s = 0.0
        self._s_per_byte = copy_s / payload_bytes
        self._clock = clock
        self._sleep = sleep
        self._began_at = 0.0

    def issue(self, placed: PlacedTree) -> list[jax.Array]:
        """See `JaxTransfer`."""
        # Before the real one: where the device is host memory, that one copies already here.
        self._began_at = self._clock()
        return super().issue(placed)

    def complete(self, placed: PlacedTree, issued: list[jax.Array]) -> OnDevice:
        """See `JaxTransfer`; returns when the slower link would have been done."""
        due_at = self._began_at + placed.tree.host_bytes * self._s_per_byte
        on_device = super().complete(placed, issued)
        self._fill_up(due_at)
        return on_device

    def _fill_up(self, due_at: float) -> None:
        left_s = due_at - self._clock()
        self.transfers += 1
        if left_s < 0:
            self.late_transfers += 1
            self.late_s -= left_s
        else:
            self._sleep(left_s)
