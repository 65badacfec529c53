"""What the stage-ahead loop asks of a trainer, and what becomes of a micro-batch there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

from .results import Refusal


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a `train_step` came to.

    Attributes:
        key: The micro-batch's key.
        value: What the engine's `fwd_bwd` returned.
        omitted: Why `value` is None though the engine returned something; empty if it is not.
        source: Where the worker had the bytes from: `staged` or `inline`.
        wait_s: Seconds in the worker from the call being there until its micro-batch could be dispatched.
        dispatch_s: Seconds in the worker for handing the work to the device.
        ready_s: Seconds in the worker from the dispatch's beginning until the device was done.
        idle_s: Seconds for which the device had nothing to do before this dispatch; 0 for the worker's first.
    """

    key: str
    value: Any
    omitted: str = ""
    source: str
    wait_s: float
    dispatch_s: float
    ready_s: float
    idle_s: float


class Trainer(Protocol):
    """The trainer of one host, as the loop sees it."""

    @property
    def stages(self) -> bool:
        """Whether it takes micro-batches ahead; False if its mode is off."""

    async def stage(
        self,
        payload: Any,
        *,
        key: str,
        timeout_s: float,
        policy_version: int | None,
        expires_s: float | None,
    ) -> str | Refusal:
        """Stages a micro-batch.

        Args:
            payload: A pytree of numpy arrays and static values.
            key: Its key.
            timeout_s: Seconds for all of it.
            policy_version: Of the policy that it was made with, if its source said.
            expires_s: Seconds from now after which it is stale, if its source said.

        Returns:
            The key once it is staged, or a `Refusal`, with nothing held.

        Raises:
            ForebayError: It was not staged, or not in time; its bytes may land later.
        """

    async def train_step(
        self, payload: Any = None, stage_key: str | None = None, *, on_sent: Callable[[], None] | None = None
    ) -> Trained:
        """Trains a micro-batch: what is staged under the key, else the payload.

        The key counts as trained from then on: what lands for it later is thrown away.

        Args:
            payload: The micro-batch, to go inline; None to use what is staged.
            stage_key: Its key.
            on_sent: Called, at most once, when the payload's bytes are all with the worker and the caller may let
                go of it. A return implies it.

        Raises:
            NotBegunError: Nothing was handed to the device.
            Exception: Any other: the step may have run.
        """

    async def reset_staged(self) -> None:
        """Drops all that is staged, in the daemon and in the trainer."""
