"""Answers, collected for each peer, and a bound on the bytes that wait for peers that do not read them."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable
from typing import Final

import zmq

from .endpoint import Endpoint

MESSAGE_BYTES: Final = 16 << 10
"""A peer's answers are sent once they take more; with the high-water mark, what small answers can take."""

_FRAME_BYTES: Final = 128
"""What ZeroMQ takes for a frame beside its bytes. Source: msg_t and content_t of libzmq, and malloc's header."""

_TURN_BYTES: Final = 8 * MESSAGE_BYTES


class PeerAnswers:
    """What is said to the peers of one ROUTER; for its loop alone.

    ZeroMQ's high-water mark counts messages, whatever their size. So a message has up to 16 KiB, or one larger
    answer. What a peer leaves lying beyond the mark is thrown away: who still cares asks again.

    Args:
        endpoint: The ROUTER.
        withheld: Hears how many answers were not sent, as their peer's routing id is another client's by now.
        undeliverable: Hears how many answers were thrown away, as their peer is gone or reads nothing.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        withheld: Callable[[int], None] = lambda _: None,
        undeliverable: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._endpoint = endpoint
        self._withheld = withheld
        self._undeliverable = undeliverable
        self._collected: dict[tuple[bytes, str], _Collected] = {}

    def add(self, routing: bytes, user: str, answer: bytes) -> None:
        """Adds an answer for a peer; it leaves with the others at the next `flush`, or earlier."""
        collected = self._collected.get((routing, user))
        if collected is None:
            collected = self._collected[routing, user] = _Collected()
        taken = len(answer) + _FRAME_BYTES
        if collected.answers and collected.bytes_now + taken > MESSAGE_BYTES:
            self._send(routing, user, collected)
        collected.answers.append(answer)
        collected.bytes_now += taken

    def has_much(self, routing: bytes, user: str) -> bool:
        """Whether a peer was answered so much since the last `flush` that a long answer can wait."""
        collected = self._collected.get((routing, user))
        return collected is not None and collected.bytes_before + collected.bytes_now > _TURN_BYTES

    def flush(self) -> None:
        """Sends what was added since the last time: each peer gets one message, unless there is much for it.

        A message costs two wake-ups of ZeroMQ's thread; the answers in it next to nothing.
        """
        all_collected, self._collected = self._collected, {}
        for (routing, user), collected in all_collected.items():
            self._send(routing, user, collected)

    def _send(self, routing: bytes, user: str, collected: _Collected) -> None:
        answers = collected.take()
        if not self._endpoint.is_still(routing, user):
            self._withheld(len(answers))
        elif not self._is_taken(routing, answers):
            self._undeliverable(len(answers))

    def _is_taken(self, routing: bytes, answers: list[bytes]) -> bool:
        socket = self._endpoint.socket
        for _ in range(2):
            try:
                socket.send_multipart([routing, *answers], zmq.NOBLOCK)
            except zmq.ZMQError as error:
                if error.errno == errno.EHOSTUNREACH:
                    return False
                if error.errno != errno.EAGAIN:
                    raise
                # A socket that sends much may not have looked lately at what its peers took; now it does.
                socket.getsockopt(zmq.EVENTS)
            else:
                return True
        return False


@dataclasses.dataclass(slots=True)
class _Collected:
    """Answers for one peer, what they take, and what those that left since the last `flush` took."""

    answers: list[bytes] = dataclasses.field(default_factory=list)
    bytes_now: int = 0
    bytes_before: int = 0

    def take(self) -> list[bytes]:
        """Returns the answers, and begins anew."""
        answers, self.answers = self.answers, []
        self.bytes_before += self.bytes_now
        self.bytes_now = 0
        return answers
