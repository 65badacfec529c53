"""What the staging queue tells about itself: one object an event, as a log line and as data.

A log record carries its event as the attribute `event`, so a logging handler gets both.
"""

from __future__ import annotations

import dataclasses
import logging

from forebay.sockets import tell_object
from forebay.wire import Event, StepTimes

log = logging.getLogger("forebay.trainer")


@dataclasses.dataclass(frozen=True, slots=True)
class StagePromote:
    """An entry is on the device.

    Attributes:
        key: Its key.
        host_bytes: Bytes of its leaves on the host.
        wait_prev_s: Seconds that it waited for what the device, or the link to it, did before.
        issue_s: Seconds that starting the transfer took.
        queued: Entries that wait on the host now.
        on_device: Entries that wait on the device now, this one included.
        transfer_s: Seconds from the transfer's start to its completion.
        ended_at: Monotonic second of its completion.
    """

    key: str
    host_bytes: int
    wait_prev_s: float
    issue_s: float
    queued: int
    on_device: int
    transfer_s: float
    ended_at: float

    def emit(self) -> None:
        """Logs it."""
        tell_object(
            log,
            logging.INFO,
            Event.STAGE_PROMOTE,
            self,
            key=self.key,
            host_bytes=self.host_bytes,
            wait_prev_s=self.wait_prev_s,
            issue_s=self.issue_s,
            queued=self.queued,
            on_device=self.on_device,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class StageDemote:
    """An entry was brought back to the host, to make room for one that a step asked for out of order.

    Attributes:
        key: Its key.
        wanted: The key that made room for.
        host_bytes: Bytes of its leaves on the host.
        transfer_s: Seconds that it took.
    """

    key: str
    wanted: str
    host_bytes: int
    transfer_s: float

    def emit(self) -> None:
        """Logs it."""
        tell_object(
            log,
            logging.WARNING,
            Event.STAGE_DEMOTE,
            self,
            key=self.key,
            wanted=self.wanted,
            host_bytes=self.host_bytes,
            transfer_s=self.transfer_s,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class StageFail:
    """A transfer failed.

    Attributes:
        key: The entry's key.
        reason: Why.
        is_final: Whether the entry can never be had on the device.
    """

    key: str
    reason: str
    is_final: bool

    def emit(self) -> None:
        """Logs it."""
        tell_object(
            log,
            logging.WARNING,
            Event.STAGE_FAIL,
            self,
            key=self.key,
            final=self.is_final,
            reason=self.reason,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class StageStale:
    """An entry was dropped before its transfer, since it was stale.

    Attributes:
        key: Its key.
        reason: Why.
    """

    key: str
    reason: str

    def emit(self) -> None:
        """Logs it."""
        tell_object(
            log,
            logging.WARNING,
            Event.STAGE_STALE,
            self,
            key=self.key,
            reason=self.reason,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class StepDone:
    """The device is done with a micro-batch that a worker was called for.

    Attributes:
        times: How it went.
    """

    times: StepTimes

    def emit(self) -> None:
        """Logs it."""
        times = self.times
        tell_object(
            log,
            logging.INFO,
            Event.STEP_DONE,
            self,
            key=times.key,
            staged=times.is_staged,
            wait_s=times.wait_s,
            dispatch_s=times.dispatch_s,
            ready_s=times.ready_s,
            idle_s=times.idle_s,
        )


StagingEvent = StagePromote | StageDemote | StageFail | StageStale
