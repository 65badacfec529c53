"""What the staging queue tells about itself: one object an event, as a log line and as data.

A log record carries its event as the attribute `event`, so a logging handler gets both.
"""

from __future__ import annotations

import dataclasses
import logging

from forebay.wire import StepTimes, printable

from .quiet_log import tell


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
        tell(
            logging.INFO,
            "STAGE_PROMOTE key=%s host_bytes=%d wait_prev_s=%.6f issue_s=%.6f queued=%d on_device=%d",
            printable(self.key),
            self.host_bytes,
            self.wait_prev_s,
            self.issue_s,
            self.queued,
            self.on_device,
            extra={"event": self},
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
        tell(
            logging.WARNING,
            "STAGE_DEMOTE key=%s wanted=%s host_bytes=%d transfer_s=%.6f",
            printable(self.key),
            printable(self.wanted),
            self.host_bytes,
            self.transfer_s,
            extra={"event": self},
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
        tell(
            logging.WARNING,
            "STAGE_FAIL key=%s final=%s reason=%s",
            printable(self.key),
            self.is_final,
            printable(self.reason),
            extra={"event": self},
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
        tell(
            logging.WARNING,
            "STAGE_STALE key=%s reason=%s",
            printable(self.key),
            printable(self.reason),
            extra={"event": self},
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
        tell(
            logging.INFO,
            "STEP_DONE key=%s staged=%s wait_s=%.6f dispatch_s=%.6f ready_s=%.6f idle_s=%.6f",
            printable(times.key),
            times.is_staged,
            times.wait_s,
            times.dispatch_s,
            times.ready_s,
            times.idle_s,
            extra={"event": self},
        )


Event = StagePromote | StageDemote | StageFail | StageStale
