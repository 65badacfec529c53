"""One request and its answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from forebay.wire import (
    BrokenError,
    ClosedError,
    ForebayError,
    Goodbye,
    Message,
    ProtocolError,
    RefusalCode,
    Refused,
    WaitTimeoutError,
    printable,
)

if TYPE_CHECKING:
    from .server_link import ServerLink


class Exchange:
    """One request and the answers to it; made by `ServerLink.exchange`."""

    def __init__(
        self,
        link: ServerLink,
        request: Message,
        *,
        repeats_are_answered: bool,
        renewed: Callable[[], Message] | None = None,
    ) -> None:
        self._link = link
        self.request = request
        self._renewed = renewed or (lambda: request)
        self.repeats_are_answered = repeats_are_answered
        self.replies: asyncio.Queue[Message | ForebayError | None] = asyncio.Queue()
        self.repeats = 0
        self._began = time.monotonic()
        self._words_heard = 0
        self._unanswered = 0

    async def next(self, deadline: float, what: str) -> Message:
        """Waits for the next answer; repeats the request while there is none.

        Args:
            deadline: Monotonic second at which to give up.
            what: What is waited for, for the error.

        Raises:
            WaitTimeoutError: No answer in time.
            BrokenError: The server said goodbye, or says nothing at all.
            ProtocolError: Whoever answers the hello is no such server.
            RefusedError: The server does not know this client's key.
            ClosedError: The client was closed.
        """
        kind = self._link.kind
        while True:
            patience = min(self._link.retry_s, deadline - time.monotonic())
            if patience <= 0:
                raise WaitTimeoutError(
                    f"timed out after {time.monotonic() - self._began:.1f} s waiting for {what}",
                    remedy=f"see what the {kind.name} at {self._link.endpoint} does with: {kind.look};"
                    " or give it more time (timeout_s)",
                )
            try:
                # Not wait_for: before Python 3.12 it loses a cancellation that comes together with the answer.
                async with asyncio.timeout(patience):
                    reply = await self.replies.get()
            except TimeoutError:
                await self._repeat(what)
                continue
            match reply:
                case Refused(code=RefusalCode.HELLO_FIRST):
                    await self._link.say_hello(deadline)
                    self._link.send(self._renewed())
                case Goodbye(kept=True):
                    continue  # another one will adopt the pool, and the repeated request with it
                case None | Goodbye() | ForebayError():
                    raise self._ended(reply, what)
                case _:
                    return reply

    async def _repeat(self, what: str) -> None:
        """Says the request again, unless the server is silent.

        Repeats are counted, not seconds: if this process itself was busy for long, none was sent meanwhile.
        """
        link = self._link
        if self._words_heard != link.words_heard:
            self._words_heard, self._unanswered = link.words_heard, 0
        if self.repeats_are_answered and self._unanswered > 0:
            link.check_silence(self._unanswered * link.retry_s, what)
        link.send(self._renewed())
        self.repeats += 1
        self._unanswered += 1

    def _ended(self, reply: Goodbye | ForebayError | None, what: str) -> Exception:
        kind, endpoint = self._link.kind, self._link.endpoint
        match reply:
            case None:
                return ClosedError(
                    f"the client was closed while {what} was awaited",
                    remedy="await what is under way before its async with block ends",
                )
            case Goodbye():
                return BrokenError(
                    f"the {kind.name} at {endpoint} stopped; still awaited: {what}", remedy=kind.start
                )
            case ProtocolError():
                return ProtocolError(
                    f"what answers at {kind.setting} {endpoint} is no {kind.name}, or one of another version:"
                    f" {printable(str(reply))}",
                    remedy=kind.address_remedy,
                )
            case _:
                return reply
