"""What becomes of a call to `StagingClient.stage`."""

from __future__ import annotations

import dataclasses

from forebay.wire import MicroBatchState, RefusalCode

from .payload import LeafReport, WireBytes


@dataclasses.dataclass(frozen=True, slots=True)
class Staged:
    """The micro-batch lies complete and checked in a slot, or was already on its way to the device.

    Attributes:
        key: Its key.
        payload_bytes: Bytes of its leaves.
        state: Where it was when the daemon answered; an answer to a repeated call may say that it is on the device
            or consumed by now, or was dropped or lost since.
        seconds: From the call to the publication.
        wire_bytes: What has left for each leaf; `leaves` tells it.
    """

    key: str
    payload_bytes: int
    seconds: float
    state: MicroBatchState = MicroBatchState.READY
    wire_bytes: WireBytes | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def leaves(self) -> tuple[LeafReport, ...]:
        """How each leaf has travelled; without wire bytes if all of it came with the offer."""
        return () if self.wire_bytes is None else self.wire_bytes.report()


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """The daemon does not take the micro-batch; nothing of it is held.

    Attributes:
        key: Its key.
        code: Why, for programs.
        words: Why, for people.
    """

    key: str
    code: RefusalCode
    words: str
