"""What no schedule of its kind can beat: a model of one wire, one copy engine and one device, as arithmetic.

Everything in it takes exactly as long as it is said to, and begins the moment that it may. What a measured run is
idle beyond that is the software's doing.
"""

from __future__ import annotations

import dataclasses
import enum

from forebay.wire import UsageError


class Schedule(enum.StrEnum):
    """How much of a micro-batch's way is taken ahead of its compute.

    INLINE: Nothing: wire, copy and compute of each, one after another.
    WITHIN: What belongs to the step that runs; its first transfer over the wire begins when the step does.
    ACROSS: Whatever comes next; the staging goes on during the update at a step's boundary.
    """

    INLINE = "inline"
    WITHIN = "within"
    ACROSS = "across"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A run of equal steps.

    A place on the host is taken when a micro-batch's transfer over the wire begins, and free again when its copy
    to the device is done. On the device one micro-batch may wait beside the running one: its copy begins when the
    one before has begun to compute.

    Attributes:
        wire_s: Seconds on the wire of each micro-batch of a step, in their order.
        copy_s: Seconds from the host to the device, of each.
        compute_s: Seconds on the device, of each.
        update_s: Seconds that the device is busy between two steps, and after the last.
        steps: How many.
        host_places: Micro-batches on their way to the host or waiting there, at most.
        ahead: Micro-batches whose transfer over the wire has begun and whose compute has not, at most; None if
            only the places limit them.
    """

    wire_s: tuple[float, ...]
    copy_s: float
    compute_s: float
    update_s: float
    steps: int
    host_places: int = 2
    ahead: int | None = None

    def __post_init__(self) -> None:
        if not self.wire_s:
            raise UsageError("a step has at least one micro-batch", got=self.wire_s)
        for name in ("steps", "host_places", "ahead"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is too small", got=value, limit="1 or more")
        if not all(seconds >= 0 for seconds in (*self.wire_s, self.copy_s, self.compute_s, self.update_s)):
            raise UsageError("a time is negative", got=self)

    @property
    def busy_s(self) -> float:
        """Seconds that the device works in the whole run, whatever the schedule."""
        return self.steps * (len(self.wire_s) * self.compute_s + self.update_s)


@dataclasses.dataclass(frozen=True, slots=True)
class Floor:
    """What a run comes to if nothing costs more than it must.

    Attributes:
        total_s: From the first transfer's begin to the last update's end.
        idle_s: Seconds of it in which the device had nothing to do.
        first_fill_s: The part of these before the very first compute.
    """

    total_s: float
    idle_s: float
    first_fill_s: float

    @property
    def idle_share(self) -> float:
        """The part of the run that the device was idle, from 0 to 1."""
        return self.idle_s / self.total_s if self.total_s else 0.0


def floor_of(workload: Workload, schedule: Schedule) -> Floor:
    """Works out what a schedule comes to.

    Source: a model of one wire, one copy engine and one device; with the real workload's seconds (see
    `overlap_result`) and six steps, it is idle for 53, 42 and 57 % of the time inline (steady wire, compressed,
    bad trace), 11, 7.5 and 21 % within the step, 2.0, 1.3 and 4.9 % across its boundary.
    """
    run = _Run(workload, schedule)
    for _ in range(workload.steps):
        for wire_s in workload.wire_s:
            run.add(wire_s)
        run.end_step()
    return Floor(run.device_free_at, run.device_free_at - workload.busy_s, run.compute_at[0])


class _Run:
    """Moments of a run, in seconds since it began.

    Attributes:
        compute_at: When each micro-batch's compute began.
        device_free_at: When the device is done with all it was given.
    """

    def __init__(self, workload: Workload, schedule: Schedule) -> None:
        self.compute_at: list[float] = []
        self.device_free_at = 0.0
        self._workload = workload
        self._schedule = schedule
        self._copied_at: list[float] = []
        self._wire_free_at = 0.0
        self._step_began_at = 0.0

    def add(self, wire_s: float) -> None:
        """Takes the next micro-batch all the way."""
        self._wire_free_at = self._wire_may_begin_at() + wire_s
        copied_at = max(self._wire_free_at, self._copy_may_begin_at()) + self._workload.copy_s
        compute_at = max(copied_at, self.device_free_at)
        self.device_free_at = compute_at + self._workload.compute_s
        self._copied_at.append(copied_at)
        self.compute_at.append(compute_at)

    def end_step(self) -> None:
        """Lets the update follow the last compute."""
        self.device_free_at += self._workload.update_s
        self._step_began_at = self.device_free_at

    def _wire_may_begin_at(self) -> float:
        if self._schedule is Schedule.INLINE:
            return self.device_free_at
        places, ahead = self._workload.host_places, self._workload.ahead
        return max(
            self._wire_free_at,
            self._step_began_at if self._schedule is Schedule.WITHIN else 0.0,
            _last_but(places, self._copied_at),
            0.0 if ahead is None else _last_but(ahead, self.compute_at),
        )

    def _copy_may_begin_at(self) -> float:
        return max(_last_but(1, self._copied_at), _last_but(1, self.compute_at))


def _last_but(places: int, moments: list[float]) -> float:
    """Returns when the place for the next micro-batch became free: it was always, while there are enough."""
    return moments[-places] if len(moments) >= places else 0.0
