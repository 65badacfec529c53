"""What a made-up trainer and its source are to do with each micro-batch."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from typing import Any

from forebay.orchestrator_client.remote_errors import NotBegunError
from forebay.wire import Raised, WorkerState


class BugError(Exception):
    """What is nobody's to expect."""


def not_begun(words: str, kind: str = "NotStagedError") -> NotBegunError:
    """Returns the error with which a worker says that it has trained nothing."""
    raised = Raised(kind, words, "", began=False, state=WorkerState.READY)
    return NotBegunError("train_step", raised)


class Staging(StrEnum):
    """What a call to stage comes to."""

    OK = "ok"
    REFUSED = "refused"
    STALE = "stale"
    BROKEN = "broken"
    LATE = "late"
    BUG = "bug"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to happen to one micro-batch; seconds."""

    pull_s: float = 0.0
    stage_s: float = 0.0
    staging: Staging = Staging.OK
    land_s: float = 0.0  # after the timeout of a late one
    is_lost: bool = False
    is_stale: bool = False  # by the time it is to be trained
    policy_version: int | None = None
    expires_s: float | None = None
    send_s: float = 0.0
    wait_s: float = 0.0
    dispatch_s: float = 0.0
    ready_s: float = 1.0
    back_s: float = 0.0  # of the answer's way
    step_error: str = ""
    may_cross: bool = True
    ends_step: bool = False
    key: str = ""


def steps_of(*sizes: int, **plan: Any) -> list[Plan]:
    """Returns equal plans for steps of these sizes."""
    one = Plan(**plan)
    return [dataclasses.replace(one, ends_step=index == size - 1) for size in sizes for index in range(size)]


class Payload:
    """A micro-batch's bytes, which can be counted while somebody has them."""

    __slots__ = ("__weakref__", "number")

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        raise AssertionError("a payload was shown")


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Event:
    """What began or ended, and when."""

    at: float
    what: str
    number: int
