"""What a client may say."""

from __future__ import annotations

from typing import assert_never

from forebay.wire import (
    Abandon,
    Advance,
    Await,
    Client,
    ControlRequest,
    Drain,
    Forget,
    GetEvents,
    GetStatus,
    Hello,
    Offer,
    Pause,
    Peek,
    Reset,
    Resume,
    Right,
)


def lacking(client: Client, request: ControlRequest) -> str:
    """Returns the words to refuse a request with that its client has no right to; empty if it has."""
    match request:
        case Offer() | Abandon() | Await() | Reset() | Advance():
            return client.lacks(Right.STAGE, request.queue)
        case GetStatus() | Peek() | GetEvents():
            return client.lacks(Right.INSPECT)
        case Drain() | Pause() | Resume() | Forget():
            return client.lacks(Right.OPERATE)
        case Hello():
            # It shows nothing that whoever has any right may not know.
            return "" if client.rights else client.lacks(Right.STAGE)
        case _:
            assert_never(request)
