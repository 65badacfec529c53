"""The thread that carries the conversation with the daemon: it owns the socket and the holder lock."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import zmq
from zmq.utils.monitor import recv_monitor_message

from forebay.shm import SHARE_SHM, FileLock, lock_holder, read_pool_header, this_peer
from forebay.sockets import milliseconds_until, ping, tell, why_silent
from forebay.wire import (
    MAX_FRAMES,
    BrokenError,
    Detach,
    Event,
    ForebayError,
    HostError,
    LocalError,
    ProtocolError,
    TrainerRequest,
    WaitTimeoutError,
    decode_trainer_reply,
    encode_message,
)

from .conversation import Conversation, Holdings, Phase, Report
from .conversation_words import told

log = logging.getLogger("forebay.trainer")

_CLOSE_S = 2.0
_LOCK_TRIES = 3
_QUEUED_MESSAGES = 4096  # what is repeated while the daemon is away piles up to here


class DaemonLink:
    """A trainer's connection to the daemon of its host.

    Args:
        endpoint: The daemon's trainer endpoint.
        queue: The queue to attach to.
        holdings: The queue object; called on the link's thread.
        broken: Called on the link's thread when the conversation cannot go on.
        retry_s: Seconds without a confirmation after which something is said again.

    Raises:
        BrokenError: The endpoint cannot be used.
    """

    def __init__(
        self,
        endpoint: str,
        queue: str,
        holdings: Holdings,
        broken: Callable[[ForebayError], None],
        *,
        retry_s: float = 2.0,
    ) -> None:
        self.endpoint = endpoint
        self._broken = broken
        self._peer = this_peer("trainer")
        self._conversation = Conversation(self._peer, queue, holdings, self._lock_in, retry_s=retry_s)
        self._lock: FileLock | None = None
        self._lock_failures = 0
        self._outbox: deque[Callable[[], Sequence[TrainerRequest]]] = deque()
        self._unsent: list[bytes] = []
        self._demand_has_changed = False
        self._has_detached = False
        self._attached_once = threading.Event()
        self._close_by: float | None = None
        self._wake_lock = threading.Lock()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.sndhwm = _QUEUED_MESSAGES
        ping(self._socket)
        self._connections = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._connection_count = 0
        self._thread = threading.Thread(target=self._run, name="forebay-link", daemon=True)

    def attach(self, timeout_s: float) -> None:
        """Connects and attaches.

        Raises:
            WaitTimeoutError: No daemon answered; the message names address and setting.
            RefusedError: Another live trainer has the queue; the message names it.
            VersionMismatchError: The daemon speaks another version.
            HostError: The pool cannot be seen from here.
        """
        try:
            self._socket.connect(self.endpoint)
        except zmq.ZMQError as error:
            raise BrokenError(
                f"trainer_endpoint {self.endpoint} cannot be used: {error.strerror}",
                remedy="set trainer_endpoint (FOREBAY_TRAINER_ENDPOINT) to the daemon's address",
            ) from error
        self._thread.start()
        if self._attached_once.wait(timeout_s) and self._conversation.phase is not Phase.FAILED:
            return
        if self._conversation.refusal is not None:
            raise self._conversation.refusal
        found = why_silent(self.endpoint)
        raise WaitTimeoutError(
            f"no daemon answered at trainer_endpoint {self.endpoint} within {timeout_s:g} s"
            + (found.words and f": {found.words}"),
            remedy=found.remedy(
                "start one (forebay serve)", "set trainer_endpoint (FOREBAY_TRAINER_ENDPOINT) to its address"
            ),
        )

    @property
    def state(self) -> str:
        """How far the conversation is, for people."""
        return self._conversation.phase.value

    def report(self, make: Callable[[], Report | None]) -> None:
        """Says something to the daemon until it is confirmed; safe from any thread.

        Args:
            make: Called on the link's thread, where the pool cannot change meanwhile; returns what is to be said,
                or None if there is nothing any more.
        """

        def say() -> Sequence[TrainerRequest]:
            report = make()
            return [] if report is None else self._conversation.report(report)

        if not self._post(say):
            report = make()
            if report is not None:
                tell(log, logging.WARNING, Event.REPORT_UNDELIVERED, report=told(report))

    def demand_changed(self) -> None:
        """Has the present demand stated, once however often it changed meanwhile; safe from any thread."""
        with self._wake_lock:
            if not self._demand_has_changed and self._wake_fd >= 0:
                self._demand_has_changed = True
                os.eventfd_write(self._wake_fd, 1)

    def close(self) -> tuple[Report, ...]:
        """Detaches, waits a little for the confirmation, and lets go of the holder lock.

        Returns:
            What the daemon never confirmed.
        """
        if self._thread.is_alive():
            self._post(self._begin_to_close)
            self._thread.join()
        elif self._thread.ident is None:
            self._release()
        return self._conversation.unconfirmed

    def _begin_to_close(self) -> list[TrainerRequest]:
        self._close_by = time.monotonic() + (_CLOSE_S if self._attached_once.is_set() else 0.0)
        return []

    def _post(self, say: Callable[[], Sequence[TrainerRequest]]) -> bool:
        """Has something said on the thread; returns whether that is still alive to say it."""
        with self._wake_lock:
            if self._wake_fd >= 0:
                self._outbox.append(say)
                os.eventfd_write(self._wake_fd, 1)
            return self._wake_fd >= 0

    # On the thread.

    def _run(self) -> None:
        try:
            self._talk()
        except ForebayError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001
            self._fail(LocalError(f"the trainer's link to the daemon failed: {error!r}"))
        finally:
            self._release()

    def _fail(self, error: ForebayError) -> None:
        tell(log, logging.ERROR, Event.LINK_FAILED, reason=str(error))
        self._conversation.phase = Phase.FAILED
        self._conversation.refusal = error
        self._attached_once.set()
        self._broken(error)

    def _talk(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake_fd, zmq.POLLIN)
        poller.register(self._connections, zmq.POLLIN)
        self._say(self._conversation.look(time.monotonic()))
        while not self._is_over():
            self._flush()
            ready = {source for source, _ in poller.poll(self._poll_ms())}
            if self._connections in ready:
                self._notice_reconnection()
            if self._socket in ready:
                self._receive()
            self._take_outbox()
            self._say(self._conversation.tick(time.monotonic()))
            self._detach_when_all_is_said()
            if self._conversation.phase is Phase.ATTACHED:
                self._attached_once.set()
            elif self._conversation.phase is Phase.FAILED and self._conversation.refusal is not None:
                raise self._conversation.refusal

    def _notice_reconnection(self) -> None:
        while self._connections.poll(0):
            recv_monitor_message(self._connections)
            self._connection_count += 1
            if self._connection_count > 1:
                self._say(self._conversation.reconnected(time.monotonic()))

    def _detach_when_all_is_said(self) -> None:
        """Says goodbye last: the daemon takes what is on the device then, and not yet told finished, for lost."""
        is_closing = self._close_by is not None and self._attached_once.is_set()
        if is_closing and self._conversation.is_settled and not self._has_detached:
            self._has_detached = True
            self._say(self._conversation.report(Detach(holder="")))

    def _is_over(self) -> bool:
        if self._close_by is None:
            return False
        has_left = self._has_detached or not self._attached_once.is_set()
        return (self._conversation.is_settled and has_left) or time.monotonic() >= self._close_by

    def _poll_ms(self) -> int | None:
        return milliseconds_until((self._conversation.next_deadline(), self._close_by), time.monotonic())

    def _take_outbox(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)
        while self._outbox:
            self._say(self._outbox.popleft()())
        with self._wake_lock:
            has_changed, self._demand_has_changed = self._demand_has_changed, False
        if has_changed:
            self._say(self._conversation.want())

    def _receive(self) -> None:
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            for frame in frames:
                self._hear(frame)

    def _hear(self, frame: bytes) -> None:
        try:
            reply = decode_trainer_reply(frame)
        except ProtocolError as error:
            fields = {"endpoint": self.endpoint, "reason": str(error)}
            tell(log, logging.WARNING, Event.UNREADABLE_ANSWER, **fields)
        else:
            self._say(self._conversation.heard(reply, time.monotonic()))

    def _say(self, messages: Sequence[TrainerRequest]) -> None:
        """Says something at the end of this turn, with all that is said until then."""
        self._unsent += map(encode_message, messages)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent:
            # Never waits: with a daemon away this long it is said again after attaching anew.
            with contextlib.suppress(zmq.Again):
                for first in range(0, len(unsent), MAX_FRAMES):
                    self._socket.send_multipart(unsent[first : first + MAX_FRAMES], zmq.NOBLOCK)

    def _lock_in(self, pool: Path, epoch: str) -> tuple[str, bool]:
        try:
            locked = self._try_to_lock_in(pool, epoch)
        except HostError as error:
            # The daemon may just have been followed by another; only a failure that stays is one.
            self._lock_failures += 1
            if self._lock_failures == _LOCK_TRIES:
                raise
            self._conversation.refusal = error
            return "", False
        self._lock_failures = 0
        return locked

    def _try_to_lock_in(self, pool: Path, epoch: str) -> tuple[str, bool]:
        if read_pool_header(pool).epoch != epoch:
            raise HostError(
                f"the pool {pool} that is seen from here is not the daemon's, but one of another /dev/shm",
                remedy=SHARE_SHM,
            )
        if self._lock is not None and self._lock.path.parent.parent == pool and self._lock.is_in_place():
            return self._lock.path.name, True
        self._let_go()
        name = uuid.uuid4().hex
        self._lock = lock_holder(pool, name, self._peer)
        return name, False

    def _let_go(self) -> None:
        if self._lock is not None:
            self._lock.close(remove=True)
            self._lock = None

    def _release(self) -> None:
        for report in self._conversation.unconfirmed:
            tell(log, logging.WARNING, Event.REPORT_UNCONFIRMED, report=told(report))
        self._socket.disable_monitor()
        self._connections.close()
        self._socket.close()
        self._context.term()
        self._let_go()
        with self._wake_lock:  # nobody may write to a descriptor whose number is somebody else's by then
            os.close(self._wake_fd)
            self._wake_fd = -1
