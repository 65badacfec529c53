"""When a step's work was handed to the device."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator


def _allow(_key: str) -> None:
    """Lets any micro-batch be dispatched."""


class StepClock:
    """Notes the moments of one `fwd_bwd`, in monotonic seconds.

    Args:
        asked_at: When the step was asked for; default now.

    Attributes:
        claim: Called with the micro-batch's key before that is dispatched; raises if it must not be.
        key: The micro-batch's, once it is dispatched; empty if it has none.
        is_staged: Whether it was staged.
        asked_at: When the step was asked for.
        began_at: When its work began to be handed over; None before.
        ended_at: When it had been, well or badly; None before.
        is_given_up: Whether nobody waits for the step any more: it need not wait for its micro-batch either.
    """

    def __init__(self, asked_at: float | None = None) -> None:
        self.claim: Callable[[str], None] = _allow
        self.key = ""
        self.is_staged = False
        self.asked_at = time.monotonic() if asked_at is None else asked_at
        self.began_at: float | None = None
        self.ended_at: float | None = None
        self.is_given_up = False

    @contextlib.contextmanager
    def dispatching(self, key: str, *, is_staged: bool) -> Iterator[None]:
        """Wraps the engine's own call."""
        self.claim(key)
        self.key, self.is_staged = key, is_staged
        self.began_at = time.monotonic()
        try:
            yield
        finally:
            self.ended_at = time.monotonic()
