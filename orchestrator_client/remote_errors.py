"""What may go wrong with a request at the other end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.wire import Message, ProtocolError, Refused, RefusedError, RemoteError, printable

if TYPE_CHECKING:
    # It holds trees, and whoever only asks a daemon has none.
    from forebay.wire import Raised


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
    """A method raised before anything was handed to the device: what it was called with may be passed again."""


def unexpected(asked: str, reply: Message) -> RemoteError:
    """Makes the error for a reply that is no answer to what was asked: a refusal, or something else."""
    if isinstance(reply, Refused):
        return RefusedError(reply.code, f"{printable(asked)}: {reply.words}")
    return ProtocolError(f"{printable(asked)} was answered with something else", got=type(reply).__name__)
