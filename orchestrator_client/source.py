"""What a source of micro-batches yields, and the keys that tell them apart."""

from __future__ import annotations

import dataclasses
from typing import Any

from forebay.wire import UsageError


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """One micro-batch of a source.

    Attributes:
        payload: A pytree of numpy arrays and static values; never shown. Leave its arrays as they are until it is
            trained.
        key: Its key, which no other of the source has; empty for one that the loop makes.
        ends_step: Whether it is the last one of its step.
        policy_version: Of the policy that it was made with, from 0; None to say nothing.
        expires_s: Seconds from now, when it is yielded, after which it is not trained any more; None for never.
    """

    payload: Any = dataclasses.field(repr=False)
    key: str = ""
    ends_step: bool = False
    policy_version: int | None = None
    expires_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Upcoming:
    """A micro-batch that could be staged before its own step begins.

    Attributes:
        step: Its step's number, from 0.
        index: Its place in the step, from 0.
        key: Its key.
        ends_step: Whether it is the last one of its step.
        payload: What the source yielded; never shown.
        policy_version: What the source said.
    """

    step: int
    index: int
    key: str
    ends_step: bool
    payload: Any = dataclasses.field(repr=False)
    policy_version: int | None = None


class KeyBook:
    """Gives keys to those that have none, and refuses a repeated one.

    A trainer never trains a key twice, so a repeated one would be lost without a word. Keys of past steps are
    forgotten, so that memory stays bounded.

    Args:
        run: What the keys that it makes begin with; no other loop's do.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._keys: dict[int, set[str]] = {}

    def enter(self, key: str, step: int, index: int) -> str:
        """Enters a key.

        Args:
            key: The source's, or empty.
            step: The step's number.
            index: The place in the step.

        Returns:
            The key, or the one that was made for its place.

        Raises:
            UsageError: It is no text, or it was there before.
        """
        if not isinstance(key, str):
            raise UsageError(
                "a micro-batch's key is no text", got=type(key).__name__, limit="str; empty for one that is made"
            )
        key = key or f"{self._run}/{step:06d}/{index:04d}"
        if any(key in keys for keys in self._keys.values()):
            raise UsageError(
                f"the source repeats a key at place {index} of step {step}",
                got=key,
                limit="a key of its own for each micro-batch",
                remedy="leave the key empty to have one made",
            )
        self._keys.setdefault(step, set()).add(key)
        return key

    def forget_before(self, step: int) -> None:
        """Forgets the keys of the steps before one."""
        for past in [number for number in self._keys if number < step]:
            del self._keys[past]
