"""The loop: takes events off sockets, threads and signals, asks the ledger, has the executor do what it says."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq

from forebay.shm import Pool, SlotTable, group_id, this_peer
from forebay.sockets import (
    BulkReceiver,
    Endpoint,
    Gate,
    Mailbox,
    control_frame_limit,
    fitting_connections,
    load_server_keys,
    milliseconds_until,
    too_many_frames,
    waking_signals,
)
from forebay.wire import (
    TRUSTED,
    Arrivals,
    ChunkHeader,
    Client,
    ControlRequest,
    DataProtection,
    Incoming,
    LocalError,
    ProtocolError,
    decode_control_request,
    decode_trainer_request,
)

from .actions import Action, Address, Channel
from .adoption import found_slots
from .executor import Executor
from .ledger import Ledger
from .memory_watch import MemoryWatch
from .settings import Settings

log = logging.getLogger("forebay.daemon")

_LINGER_MS = 2_000
T = TypeVar("T")


class Ready(msgspec.Struct, frozen=True):
    """Where a daemon that is ready can be reached."""

    pid: int
    control_endpoint: str
    data_endpoint: str
    trainer_endpoint: str
    pool: str


class Server:
    """One daemon: its sockets, its pool and its loop.

    Args:
        settings: See `Settings`.
        software: Version of this package.
        epoch: Names this run.

    Raises:
        HeldError: Another daemon has the pool or an endpoint.
        HostError: The pool or an endpoint cannot be had; nothing is left behind.
        SettingError: A key, the authorised clients or the group cannot be used.
    """

    def __init__(self, settings: Settings, *, software: str, epoch: str) -> None:
        self._settings = settings
        self._memory = MemoryWatch(settings.max_private_bytes)
        self._stop_at: float | None = None
        self._was_signalled = False
        self._keys = load_server_keys(settings.key_file, settings.authorised_file)
        gid = group_id(settings.group)
        me = this_peer("forebay daemon")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._pool = Pool(
            Path(settings.pool),
            slot_count=settings.slots,
            slot_bytes=settings.slot_initial_bytes,
            remembered_keys=settings.remembered_keys,
            peer=me,
            epoch=epoch,
            gid=gid,
        )
        found = found_slots(self._pool)
        with contextlib.ExitStack() as undo:
            is_adopted = bool(found.occupied or self._pool.outcomes.found)
            undo.callback(self._pool.close, keep=settings.keep_pool or is_adopted)
            undo.callback(self._context.term)
            self._mailbox = Mailbox()
            undo.callback(self._mailbox.close)
            # Others: the lock of each trainer is watched through a descriptor.
            max_connections = fitting_connections(
                settings.max_connections, setting="max_connections", endpoints=3, others=1
            )
            self._gate = None if self._keys is None else Gate(self._context, self._keys)
            undo.callback(self._close_gate)

            def bind(name: str) -> Endpoint:
                endpoint = Endpoint(
                    self._context,
                    zmq.ROUTER,
                    getattr(settings, name),
                    setting=name,
                    peer=me,
                    max_frame_bytes=control_frame_limit(settings.max_manifest_bytes + settings.max_eager_bytes),
                    max_connections=max_connections,
                    receive_high_water=settings.control_messages,
                    keys=self._keys,
                    gid=gid,
                )
                undo.callback(endpoint.close, linger_ms=0)
                return endpoint

            self._control = bind("control_endpoint")
            self._trainer = bind("trainer_endpoint")
            incoming = Incoming()
            self._data = BulkReceiver(
                settings.data_endpoint,
                setting="data_endpoint",
                peer=me,
                chunk_bytes=settings.chunk_bytes,
                receive_chunks=settings.receive_chunks,
                incoming=incoming,
                target=self._target,
                complete=self._complete,
                failed=self._failed,
                threads=settings.receive_threads,
                io_threads=settings.io_threads,
                max_connections=max_connections,
                keys=self._keys if settings.data_protection == DataProtection.ENCRYPTED else None,
                gid=gid,
            )
            undo.pop_all()
        now = time.monotonic()
        self._ledger = Ledger(
            settings.ledger,
            SlotTable(found.slots),
            incoming,
            me=me,
            epoch=epoch,
            software=software,
            pool=str(self._pool.path),
            data_endpoint=self._data.address,
            data_protection=settings.protection_of_data,
            now=now,
        )
        endpoints = {Channel.CONTROL: self._control, Channel.TRAINER: self._trainer}
        self._executor = Executor(self._ledger, self._pool, endpoints, self._mailbox)
        self._perform = self._executor.perform
        self.ready = Ready(
            pid=me.pid,
            control_endpoint=self._control.address,
            data_endpoint=self._data.address,
            trainer_endpoint=self._trainer.address,
            pool=str(self._pool.path),
        )
        self._perform(self._ledger.adopt(found.occupied, self._pool.outcomes.take_found(), now))

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

    def run(self, *, parent_fd: int | None = None) -> None:
        """Serves until SIGTERM, SIGINT, or the end of the process that holds the other end of `parent_fd`.

        Args:
            parent_fd: A pipe's reading end; its end-of-file means that the parent is gone.
        """
        with self._signals():
            self._serve(parent_fd)

    def _serve(self, parent_fd: int | None) -> None:
        poller = zmq.Poller()
        for endpoint in (self._control, self._trainer):
            poller.register(endpoint.socket, zmq.POLLIN)
            poller.register(endpoint.connections.monitor, zmq.POLLIN)
        poller.register(self._mailbox.fileno(), zmq.POLLIN)
        poller.register(self._signal_end, zmq.POLLIN)
        if parent_fd is not None:
            poller.register(parent_fd, zmq.POLLIN)
        while not self._is_over():
            due = self._ledger.next_deadline()
            others = (self._stop_at, self._executor.next_deadline(), self._memory.next_look_at)
            poll_ms = milliseconds_until((due, *others), time.monotonic())
            ready = {source for source, _ in poller.poll(poll_ms)}
            if parent_fd is not None and parent_fd in ready:
                poller.unregister(parent_fd)
                self._stop()
            if self._signal_end in ready:
                self._take_signals()
            self._turn(ready, due)

    def _turn(self, ready: set[object], due: float | None) -> None:
        for endpoint in (self._control, self._trainer):
            if endpoint.connections.monitor in ready:
                endpoint.connections.attend()
        now = time.monotonic()
        self._memory.look(now)
        self._executor.tell_left_out(now)
        for event in self._mailbox.take():
            event()
        self._executor.flush()
        if self._trainer.socket in ready:
            self._receive(Channel.TRAINER, self._trainer, decode_trainer_request, self._ledger.trainer)
        if self._control.socket in ready:
            self._receive(Channel.CONTROL, self._control, decode_control_request, self._hear_control)
        if due is not None and due <= (now := time.monotonic()):
            self._perform(self._ledger.tick(now))
            self._executor.flush()

    def _receive(
        self,
        channel: Channel,
        endpoint: Endpoint,
        decode: Callable[[bytes], T],
        handle: Callable[[Address, T, float], Sequence[Action]],
    ) -> None:
        for routing, user, frames, too_many in endpoint.received():
            sender = Address(channel, routing, user)
            if too_many:
                self._perform(self._ledger.unreadable(sender, too_many_frames(too_many)))
            for frame in frames:
                try:
                    request = decode(frame)
                except ProtocolError as error:
                    self._perform(self._ledger.unreadable(sender, str(error)))
                else:
                    self._perform(handle(sender, request, time.monotonic()))
        self._executor.flush()

    def _hear_control(self, sender: Address, request: ControlRequest, now: float) -> Sequence[Action]:
        return self._ledger.control(sender, request, now, self._client_of(sender))

    def _client_of(self, sender: Address) -> Client:
        if self._keys is None or not self._control.is_guarded:
            return TRUSTED
        return self._keys.authorised.client_of(sender.user)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Has SIGTERM and SIGINT written into a pipe that the poll watches."""
        with waking_signals() as self._signal_end:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda _number, _frame: None)
            try:
                yield
            finally:
                # Not as before: one more SIGTERM would end the process in the middle of its clean-up.
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, signal.SIG_IGN)

    def _take_signals(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in os.read(self._signal_end, 64):
                self._stop(at_once=self._was_signalled)
                self._was_signalled = True

    def _stop(self, *, at_once: bool = False) -> None:
        """Starts to drain, or cuts that short: a second signal does."""
        now = time.monotonic()
        if self._stop_at is None:
            log.info("drain limit_s=%s", self._settings.drain_s)
            self._stop_at = now + self._settings.drain_s
            self._perform(self._ledger.drain(now))
        if at_once:
            self._stop_at = now

    def _is_over(self) -> bool:
        if self._stop_at is None:
            return False
        return not self._ledger.is_filling or time.monotonic() >= self._stop_at

    def _close_gate(self) -> None:
        if self._gate is not None:
            self._gate.close()

    def close(self, *, failed: bool = False) -> None:
        """Delivers last answers, closes the sockets, and removes the pool unless it is to be kept.

        Args:
            failed: The loop ended by an error; the pool is kept for the next daemon then.
        """
        keep = failed or self._settings.keep_pool
        self._perform(self._ledger.goodbye(kept=keep))
        self._executor.flush()
        self._data.close()
        self._control.close(linger_ms=_LINGER_MS)
        self._trainer.close(linger_ms=_LINGER_MS)
        self._close_gate()
        self._context.term()
        self._executor.close()
        self._mailbox.close()
        self._pool.close(keep=keep)
        log.info("stopped pool_kept=%s", keep)
