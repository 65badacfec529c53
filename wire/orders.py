"""The control messages by which an operator gives the daemon orders, and their answers."""

from __future__ import annotations

from .message import Message
from .states import MicroBatchState


class Drain(Message, frozen=True):
    """Has the daemon take nothing in any more, until `Resume`; answered by `Valves`."""


class Pause(Message, frozen=True):
    """Has nothing more lent of a queue, or of all if none is named, until `Resume`; answered by `Valves`."""

    queue: str = ""


class Resume(Message, frozen=True):
    """Undoes `Drain` and `Pause`, or only the `Pause` of the queue that is named; answered by `Valves`."""

    queue: str = ""


class Valves(Message, frozen=True):
    """Whether micro-batches come in, and which queues lend none.

    Attributes:
        draining: Whether nothing is taken in.
        all_paused: Whether no queue lends.
        paused: Names of the queues that lend nothing.
    """

    draining: bool
    all_paused: bool
    paused: tuple[str, ...]


class Forget(Message, frozen=True):
    """Drops a micro-batch that no trainer has, and all that is remembered of its key; answered by `Forgotten`.

    The key may be staged again, as if nobody had ever used it.

    Attributes:
        trained: Whether also a key is meant that was trained: it could be trained once more.
    """

    queue: str
    key: str
    trained: bool = False


class Forgotten(Message, frozen=True):
    """What was known of a key before it was forgotten."""

    state: MicroBatchState
