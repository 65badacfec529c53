"""The loop: takes events off sockets, threads and signals, asks the ledger, has the executor do what it says."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from forebay.shm import Pool, SlotTable, group_id, this_peer
from forebay.sockets import Mailbox, ServerKeys, load_server_keys, milliseconds_until, tell
from forebay.wire import Arrivals, ChunkHeader, Event, Incoming, LocalError, Peer

from .actions import Channel
from .adoption import Found, found_in
from .executor import Executor
from .hearing import Hearing
from .http_address import http_address
from .ledger import Ledger
from .memory_watch import MemoryWatch
from .notify import ServiceManager
from .ready import Ready
from .reloading import ReadSettings, read_again
from .server_sockets import ServerSockets
from .settings import Settings
from .stop_signals import Terminal, stop_signals, take_signals

if TYPE_CHECKING:
    from .http_server import HttpServer

log = logging.getLogger("forebay.daemon")

_LINGER_MS = 2_000


class Server:
    """One daemon: its sockets, its pool and its loop.

    Args:
        settings: See `Settings`.
        software: Version of this package.
        epoch: Names this run.
        read: Reads the settings again, at SIGHUP; by default there are no others.

    Raises:
        HeldError: Another daemon has the pool or an endpoint.
        HostError: The pool or an endpoint cannot be had; nothing is left behind.
        SettingError: A key, the authorised clients or the group cannot be used.
    """

    def __init__(self, settings: Settings, *, software: str, epoch: str, read: ReadSettings | None = None) -> None:
        self._settings = settings
        self._read: ReadSettings = read or (lambda: settings)
        self._manager = ServiceManager(os.environ)
        self._terminal = Terminal()
        self._memory = MemoryWatch(settings.max_private_bytes)
        self._stop_at: float | None = None
        self._was_signalled = False
        self._must_keep = True  # the pool, should the start fail: until it is known that nothing is in it
        me = this_peer("forebay daemon")
        keys = load_server_keys(settings.key_file, settings.authorised_file)
        gid = group_id(settings.group)
        with contextlib.ExitStack() as undo:
            found = self._open_pool(me, epoch, gid, undo)
            self._open_sockets(me, keys, gid, undo)
            self._begin(found, me, epoch, software, undo)
            self._http = self._open_http(undo)
            # Last: a start that fails leaves them to the next. Of who has something, it goes once that is told.
            self._pool.remove_dead_holders(spare=self._ledger.holders)
            undo.pop_all()

    def _open_pool(self, me: Peer, epoch: str, gid: int | None, undo: contextlib.ExitStack) -> Found:
        settings = self._settings
        self._pool = Pool(
            Path(settings.pool),
            slot_count=settings.slots,
            slot_bytes=settings.slot_initial_bytes,
            remembered_keys=settings.remembered_keys,
            peer=me,
            epoch=epoch,
            gid=gid,
            reserving=lambda index, count: self._manager.reserving(index, count, settings.slot_initial_bytes),
        )
        undo.callback(lambda: self._pool.close(keep=self._must_keep))
        found = found_in(self._pool, time.monotonic())
        self._must_keep = settings.keep_pool or bool(found.occupied or found.outcomes)
        return found

    def _open_sockets(
        self, me: Peer, keys: ServerKeys | None, gid: int | None, undo: contextlib.ExitStack
    ) -> None:
        self._mailbox = Mailbox()
        undo.callback(self._mailbox.close)
        self._incoming = Incoming()
        self._sockets = ServerSockets(
            self._settings,
            me,
            keys=keys,
            gid=gid,
            incoming=self._incoming,
            target=self._target,
            complete=self._complete,
            failed=self._failed,
        )
        undo.callback(self._sockets.close, linger_ms=0)

    def _begin(self, found: Found, me: Peer, epoch: str, software: str, undo: contextlib.ExitStack) -> None:
        """Takes over what was found in the pool."""
        now = time.monotonic()
        self._ledger = Ledger(
            self._settings.ledger,
            SlotTable(found.slots),
            self._incoming,
            me=me,
            epoch=epoch,
            software=software,
            pool=str(self._pool.path),
            data_endpoint=self._sockets.data.address,
            data_protection=self._settings.protection_of_data,
            now=now,
        )
        endpoints = {Channel.CONTROL: self._sockets.control, Channel.TRAINER: self._sockets.trainer}
        self._executor = Executor(self._ledger, self._pool, endpoints, self._mailbox)
        undo.callback(self._executor.close)
        self._perform = self._executor.perform
        self._hearing = Hearing(self._ledger, self._executor, self._sockets, self._pool.path)
        self._manager.adopting(len(found.occupied))
        self._perform(self._ledger.adopt(found.occupied, found.outcomes, found.holders, now))

    def _open_http(self, undo: contextlib.ExitStack) -> HttpServer | None:
        if not self._settings.http_endpoint:
            return None
        # Not at the top: who wants no HTTP does not wait for its libraries.
        from .http_server import HttpServer
        from .look_pages import LookPages
        from .loop_questions import LoopQuestions
        from .pages import DaemonPages

        questions = LoopQuestions(self._mailbox)
        supervised = DaemonPages(
            questions,
            self._ledger,
            self._sockets,
            max_private_bytes=lambda: self._settings.max_private_bytes,
        )
        pages = LookPages(questions, self._ledger).by_path() | supervised.by_path()
        http = HttpServer(http_address(self._settings.http_endpoint), pages)
        undo.callback(http.close)
        return http

    @property
    def ready(self) -> Ready:
        """Where it can be reached."""
        return Ready(
            pid=os.getpid(),
            control_endpoint=self._sockets.control.address,
            data_endpoint=self._sockets.data.address,
            trainer_endpoint=self._sockets.trainer.address,
            pool=str(self._pool.path),
            http_endpoint=str(self._http.address) if self._http is not None else "",
        )

    # On the threads that receive.

    def _target(self, header: ChunkHeader) -> memoryview:
        return self._pool.files[header.slot].body(header.offset, header.length)

    def _complete(self, arrivals: Arrivals) -> None:
        self._mailbox.post(lambda: self._perform(self._ledger.filled(arrivals, time.monotonic())))

    def _failed(self, error: BaseException) -> None:
        def end() -> None:
            raise LocalError(f"a thread that receives chunks ended: {error!r}") from error

        self._mailbox.post(end)

    # The loop.

    def run(self, *, parent_fd: int | None = None, at_work: Callable[[], None]) -> None:
        """Serves until SIGTERM, SIGINT, or the end of the process that holds the other end of `parent_fd`.

        Args:
            parent_fd: A pipe's reading end; its end-of-file means that the parent is gone.
            at_work: Called once all is there and signals are taken in order; not before, as whoever hears that may
                send one at once.
        """
        with stop_signals() as self._signal_end:
            at_work()
            self._manager.serving(len(self._pool.files))
            self._serve(parent_fd)

    def _serve(self, parent_fd: int | None) -> None:
        poller = zmq.Poller()
        for endpoint in (self._sockets.control, self._sockets.trainer):
            poller.register(endpoint.socket, zmq.POLLIN)
            poller.register(endpoint.connections.monitor, zmq.POLLIN)
        poller.register(self._mailbox.fileno(), zmq.POLLIN)
        poller.register(self._signal_end, zmq.POLLIN)
        if parent_fd is not None:
            poller.register(parent_fd, zmq.POLLIN)
        while not self._is_over():
            due = self._ledger.next_deadline()
            others = (self._stop_at, self._executor.next_deadline(), self._memory.next_look_at)
            poll_ms = milliseconds_until((due, self._manager.next_ping_at, *others), time.monotonic())
            ready = {source for source, _ in poller.poll(poll_ms)}
            if parent_fd is not None and parent_fd in ready:
                poller.unregister(parent_fd)
                self._stop()
            if self._signal_end in ready:
                self._take_signals()
            self._turn(ready, due)

    def _turn(self, ready: set[object], due: float | None) -> None:
        for endpoint in (self._sockets.control, self._sockets.trainer):
            if endpoint.connections.monitor in ready:
                endpoint.connections.attend()
        now = time.monotonic()
        if (private_bytes := self._memory.look(now)) is not None:
            self._ledger.memory(private_bytes)
        self._manager.look(now)
        self._executor.tell_left_out(now)
        for event in self._mailbox.take():
            event()
        self._executor.flush()
        if self._sockets.trainer.socket in ready:
            self._hearing.trainers()
        if self._sockets.control.socket in ready:
            self._hearing.others()
        if due is not None and due <= (now := time.monotonic()):
            self._perform(self._ledger.tick(now))
            self._executor.flush()

    def _take_signals(self) -> None:
        for number in take_signals(self._signal_end):
            if number != signal.SIGHUP:
                self._stop(at_once=self._was_signalled)
                self._was_signalled = True
            elif self._terminal.is_gone():
                self._stop()
            elif self._stop_at is None:
                self._reload()

    def _reload(self) -> None:
        """Reads the settings again, and goes on with those that a running daemon can take over."""
        now = time.monotonic()
        self._manager.reloading(now)
        self._settings, words = read_again(self._settings, self._read)
        self._memory = MemoryWatch(self._settings.max_private_bytes)
        self._perform(self._ledger.change(self._settings.ledger, now))
        self._executor.flush()
        self._manager.serving(len(self._pool.files), words)

    def _stop(self, *, at_once: bool = False) -> None:
        """Starts to drain, or cuts that short: a second signal does."""
        now = time.monotonic()
        if self._stop_at is None:
            self._manager.draining(self._settings.drain_s)
            self._stop_at = now + self._settings.drain_s
            self._perform(self._ledger.drain(now))
        if at_once:
            self._stop_at = now

    def _is_over(self) -> bool:
        if self._stop_at is None:
            return False
        return not self._ledger.is_filling or time.monotonic() >= self._stop_at

    def close(self, *, failed: bool = False) -> None:
        """Delivers last answers, closes the sockets, and removes the pool unless it is to be kept.

        Args:
            failed: The loop ended by an error; the pool is kept for the next daemon then.
        """
        if self._http is not None:
            self._http.close()
        keep = failed or self._settings.keep_pool
        if not failed:
            self._manager.stopping()
        self._perform(self._ledger.goodbye(kept=keep))
        self._executor.flush()
        self._sockets.close(linger_ms=_LINGER_MS)
        self._executor.close()
        self._mailbox.close()
        self._pool.close(keep=keep)
        tell(log, logging.INFO, Event.STOPPED, pool_kept=keep)
