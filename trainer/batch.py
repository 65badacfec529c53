"""A micro-batch on the device, in the trainer's hands."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from forebay.wire import ClosedError


class Batch:
    """A micro-batch whose arrays are on the device; a context manager.

    Leaving the context marks it consumed. Leaving it by an exception marks it dropped, with the exception as the
    reason: the orchestrator hears that this micro-batch was not trained to its end.

    Attributes:
        key: The micro-batch's key.
        host_bytes: Bytes of its leaves on the host.
        promote_s: Seconds that the transfer to the device took.
    """

    def __init__(
        self, key: str, tree: Any, *, host_bytes: int, promote_s: float, finish: Callable[[str, str], None]
    ) -> None:
        self.key = key
        self.host_bytes = host_bytes
        self.promote_s = promote_s
        self._tree = tree
        self._finish: Callable[[str, str], None] | None = finish

    def __repr__(self) -> str:
        state = "in use" if self._finish else "finished"
        return f"Batch({self.key!r}, {self.host_bytes} bytes, {state})"

    @property
    def tree(self) -> Any:
        """The micro-batch: the sender's containers and static values, arrays on the device.

        Raises:
            ClosedError: The batch is finished; the arrays were let go.
        """
        if self._finish is None:
            raise ClosedError(f"batch {self.key!r} is finished", remedy="use it inside its with block")
        return self._tree

    def close(self, dropped_because: str = "") -> None:
        """Marks it consumed, or dropped for a reason, and lets the arrays go; a second call does nothing."""
        if self._finish is None:
            return
        finish, self._finish, self._tree = self._finish, None, None
        finish(self.key, dropped_because)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("" if kind is None else f"the trainer raised {kind.__name__}: {error}")

    def __del__(self) -> None:
        if getattr(self, "_finish", None) is not None and not sys.is_finalizing():
            warnings.warn(f"{self!r} was never closed", ResourceWarning, stacklevel=2, source=self)
