"""What may go wrong with a call at the other end."""

from __future__ import annotations

from typing import Any

from forebay.wire import Raised, RemoteError, printable


class RemoteCallError(RemoteError):
    """A method raised in the trainer's worker.

    Args:
        method: Its name.
        raised: What the worker tells.

    Attributes:
        method: Its name.
        kind: The exception's class.
        words: What it says.
        traceback: As the worker would print it.
        state: Of the worker, after it: `ready`, or `failed` if work on the device may have begun.
    """

    def __init__(self, method: str, raised: Raised) -> None:
        super().__init__(
            f"{method} raised in the trainer's worker, which is {raised.state}: {printable(raised.words)}"
        )
        self.method = method
        self.kind = raised.kind
        self.words = raised.words
        self.traceback = raised.traceback
        self.state = raised.state
        self._raised = raised
        # Printed with the error, below its own traceback.
        self.add_note("the worker's own traceback:\n" + "\n".join(map(printable, raised.traceback.splitlines())))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.method, self._raised)


class NotBegunError(RemoteCallError):
    """A step raised before anything was handed to the device: its micro-batch may be passed again."""
