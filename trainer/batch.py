"""A micro-batch on the device, in the trainer's hands."""

from __future__ import annotations

import sys
import warnings
from types import TracebackType
from typing import Any, Protocol, Self

from forebay.wire import ClosedError, words_of


class StepReport(Protocol):
    """How a batch tells where it came from what becomes of it."""

    def dispatched(self, outputs: Any) -> None:
        """Its work was handed to the device."""

    def ended(self, reason: str) -> None:
        """It is consumed, if `reason` is empty, or dropped."""


class Batch:
    """A micro-batch whose arrays are on the device; a context manager.

    Leaving the context marks it consumed. Leaving it by an exception marks it dropped, with the exception as the
    reason: the orchestrator hears that this micro-batch was not trained to its end.

    The next micro-batch is promoted when this one's work was handed to the device: at `dispatched`, or when the
    context is left. Wait for results after that, not before, and the transfer is hidden behind the compute.

    Attributes:
        key: The micro-batch's key.
        host_bytes: Bytes of its leaves on the host.
        promote_s: Seconds that the transfer to the device took.
        is_staged: Whether it was staged before its step asked for it.
    """

    def __init__(
        self, key: str, tree: Any, *, host_bytes: int, promote_s: float, is_staged: bool, step: StepReport
    ) -> None:
        self.key = key
        self.host_bytes = host_bytes
        self.promote_s = promote_s
        self.is_staged = is_staged
        self._tree = tree
        self._step = step
        self._is_dispatched = False
        self._is_closed = False

    def __repr__(self) -> str:
        state = "finished" if self._is_closed else "dispatched" if self._is_dispatched else "in use"
        return f"Batch({self.key!r}, {self.host_bytes} bytes, {state})"

    @property
    def tree(self) -> Any:
        """The micro-batch: the sender's containers and static values, arrays on the device.

        Raises:
            ClosedError: The batch is finished; the arrays were let go.
        """
        if self._is_closed:
            raise ClosedError(f"batch {self.key!r} is finished", remedy="use it inside its with block")
        return self._tree

    def dispatched(self, outputs: Any = None) -> None:
        """Tells that its work was handed to the device, so that the next micro-batch is promoted now.

        Args:
            outputs: What that work makes: any pytree with device arrays. By them the queue knows when the device
                is done with this micro-batch; without them it takes it to be done.
        """
        if not self._is_dispatched:
            self._step.dispatched(outputs)
            self._is_dispatched = True

    def close(self, dropped_because: str = "") -> None:
        """Marks it consumed, or dropped for a reason, and lets the arrays go; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self._tree = None
        try:
            self.dispatched()
        finally:
            self._step.ended(dropped_because)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("" if error is None else f"the trainer raised {words_of(error)}")

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True) and not sys.is_finalizing():
            warnings.warn(f"{self!r} was never closed", ResourceWarning, stacklevel=2, source=self)
