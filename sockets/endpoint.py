"""Binding sockets, and telling who holds an endpoint that cannot be bound."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path

import zmq

from forebay.shm import FileLock, make_private_folder, runtime_folder, share
from forebay.wire import (
    MAX_FRAMES,
    Faults,
    HeldError,
    HostError,
    Peer,
    SettingError,
    check_endpoint,
)

from .connections import Connections, hidden_path, ipc_path
from .gate import CURVE_FRAME_BYTES, ServerKeys
from .holder import who_holds
from .liveness import answer_pings
from .routing_ids import hide_routing_ids

_CONTROL_SLACK_BYTES = 64 << 10
_MAX_BACKLOG = 100
_MESSAGES_PER_TURN = 16
_FRAMES_PER_TURN = 4096
_REMEMBERED_USERS = 16_384


class Endpoint:
    """One bound socket, and for ipc the lock that keeps a second process off its path.

    ZeroMQ would take an ipc path over from a living process without a word; hence the lock.

    Args:
        context: The ZeroMQ context.
        kind: zmq.ROUTER or zmq.PULL.
        address: tcp or ipc address; a tcp port may be `*`.
        setting: Name of the setting, for errors.
        peer: This process, for whoever finds the path locked.
        max_frame_bytes: Larger frames cut their connection.
        receive_high_water: Messages buffered per peer.
        send_high_water: Messages of answers buffered per peer; more are thrown away. See `PeerAnswers`.
        max_connections: See `Connections`.
        keys: Guard a tcp address; the context must have its `Gate`. An ipc path is guarded by the file system.
        gid: A group that may connect to an ipc path beside this user; None for nobody.
        faults: Count handshakes that fail; None for counters of its own, which nobody sees.

    Attributes:
        connections: Whoever polls the socket attends to them as well.
        address: Where it is bound.
        is_guarded: Whether only clients with a known key get in.

    Raises:
        HeldError: Another process has the address; the message names it where it can be known.
        HostError: The address cannot be bound for another reason.
        SettingError: Neither tcp nor ipc, or an ipc path that is too long.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        kind: int,
        address: str,
        *,
        setting: str,
        peer: Peer,
        max_frame_bytes: int,
        receive_high_water: int = 1000,
        send_high_water: int = 128,
        max_connections: int = 1024,
        keys: ServerKeys | None = None,
        gid: int | None = None,
        faults: Faults | None = None,
    ) -> None:
        check_endpoint(setting, address)
        self._gid = gid
        self._lock = _claim_ipc(address, setting, peer, gid) if address.startswith("ipc://") else None
        self._users: OrderedDict[bytes, str] = OrderedDict()
        self.is_guarded = keys is not None and address.startswith("tcp://")
        self._sender, self._has_more, self._frame_count = b"", False, 0
        self._poller = zmq.Poller()
        with contextlib.ExitStack() as undo:
            undo.callback(self._free_path)
            if (path := ipc_path(address)) is not None:
                hidden_path(path).unlink(missing_ok=True)  # left by one that was killed
            if kind == zmq.ROUTER:
                hide_routing_ids()
            self.socket = context.socket(kind)
            undo.callback(self.socket.close, linger=0)
            self.connections = Connections(self.socket, setting, max_connections, faults or Faults())
            undo.callback(self.connections.close)
            for source in (self.socket, self.connections.monitor):
                self._poller.register(source, zmq.POLLIN)
            # Before it is bound, since each connection takes it over: one that is lost with answers unsent would
            # otherwise keep them, and the context from ending, for ever. `close` gives those of the others time.
            self.socket.linger = 0
            self.socket.maxmsgsize = max_frame_bytes
            self.socket.rcvhwm = receive_high_water
            self.socket.sndhwm = send_high_water
            # Those who wait here come even when no more are taken.
            self.socket.backlog = min(_MAX_BACKLOG, max_connections)
            answer_pings(self.socket)
            if kind == zmq.ROUTER:
                self.socket.router_mandatory = True
            if keys is not None and self.is_guarded:
                keys.guard(self.socket)
                self.socket.maxmsgsize = max_frame_bytes + CURVE_FRAME_BYTES
            self._bind(context, address, setting, keys)
            undo.pop_all()
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def _bind(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, setting: str, keys: ServerKeys | None
    ) -> None:
        try:
            self._bind_privately(address)
        except zmq.ZMQError as error:
            if error.errno == errno.EADDRINUSE:
                raise HeldError(
                    f"{setting} {address} is held by {who_holds(context, address, keys)}",
                    remedy=f"stop it first, or set {setting} to another address",
                ) from error
            raise HostError(f"{setting} {address} cannot be bound: {error.strerror}") from error

    def wait(self) -> None:
        """Waits for a message, and attends to the connections meanwhile.

        Raises:
            zmq.ContextTerminated: While it waited.
        """
        while True:
            ready = {source for source, _ in self._poller.poll()}
            if self.connections.monitor in ready:
                self.connections.attend()
            if self.socket in ready:
                return

    def _bind_privately(self, address: str) -> None:
        if self._lock is None:
            self.socket.bind(address)
            return
        # An ipc path must not be open for a moment. Whatever another thread makes meanwhile is private too, and a
        # folder must be one that its owner can enter.
        before = os.umask(0o077)
        try:
            self.socket.bind(address)
        finally:
            os.umask(before)
        share(self._lock.path.with_suffix(""), private=0o600, shared=0o660, gid=self._gid)

    def received(self) -> Iterator[tuple[bytes, str, list[bytes], int]]:
        """Yields what came to a ROUTER, up to one turn's share; waits for nothing.

        Yields:
            The sender's routing id; the key that it proved to have, empty where there are none; the frames; how
            many more there were than a message may have, once that is known. A long message comes in parts.
        """
        room = _FRAMES_PER_TURN
        for _ in range(_MESSAGES_PER_TURN):
            if not self._has_more:
                try:
                    routing = self.socket.recv(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    return
                self._sender, self._has_more, self._frame_count = routing.bytes, routing.more, 0
            user, frames = self._receive(room)
            room -= len(frames)
            kept = frames[: max(0, MAX_FRAMES - self._frame_count)]
            self._frame_count += len(frames)
            too_many = 0 if self._has_more else max(0, self._frame_count - MAX_FRAMES)
            yield self._sender, user, kept, too_many
            if not room:
                return

    def _receive(self, room: int) -> tuple[str, list[bytes]]:
        """Returns who sent the next frames of a message, and at most `room` of them."""
        frames: list[bytes] = []
        user = ""
        while self._has_more and len(frames) < room:
            # As an object: it knows whether more follows, which the socket tells only for the price of a frame.
            frame = self.socket.recv(copy=False)
            self._has_more = frame.more
            if self.is_guarded:
                with contextlib.suppress(zmq.ZMQError):  # nobody said who sent it
                    user = str(frame.get("User-Id"))
            frames.append(frame.bytes)
        if self.is_guarded:
            self._note_user(self._sender, user)
        return user, frames

    def _note_user(self, sender: bytes, user: str) -> None:
        self._users[sender] = user
        self._users.move_to_end(sender)
        if len(self._users) > _REMEMBERED_USERS:
            self._users.popitem(last=False)

    def is_still(self, sender: bytes, user: str) -> bool:
        """Whether a routing id is, as far as is known, the one of the same client as before.

        ZeroMQ lets a client choose its routing id, so also one that somebody else had.
        """
        return self._users.get(sender, user) == user

    def close(self, *, linger_ms: int) -> None:
        """Closes the socket, giving queued answers some time, and frees the path."""
        self.connections.close()
        self.socket.close(linger=linger_ms)
        self._free_path()

    def _free_path(self) -> None:
        if self._lock is not None:
            path = self._lock.path.with_suffix("")
            for left in (path, hidden_path(path)):
                left.unlink(missing_ok=True)
            self._lock.close(remove=True)


def control_frame_limit(max_manifest_bytes: int) -> int:
    """Returns the largest control frame: a manifest and what surrounds it."""
    return max_manifest_bytes + _CONTROL_SLACK_BYTES


def too_many_frames(count: int) -> str:
    """Says how many of a message's frames were not looked at, and why."""
    return f"a message had {count} frames more than it may have, {MAX_FRAMES}; they were thrown away"


def milliseconds_until(deadlines: Iterable[float | None], now: float) -> int | None:
    """Returns how long a poll may wait.

    Args:
        deadlines: Monotonic seconds; None for one that there is not.
        now: Monotonic second.

    Returns:
        Milliseconds until the first of them; None if there is none.
    """
    due = min((deadline for deadline in deadlines if deadline is not None), default=None)
    # Rounded up: waking before the deadline would find nothing to do and spin.
    return None if due is None else max(0, int((due - now) * 1000) + 1)


def _claim_ipc(address: str, setting: str, peer: Peer, gid: int | None) -> FileLock:
    path = Path(address.removeprefix("ipc://"))
    if not path.name or (path.exists() and not path.is_socket()):
        # ZeroMQ would remove whatever file lies there.
        raise SettingError(f"setting {setting}", got=address, limit="ipc:// and a path that is free or a socket's")
    if path.parent == runtime_folder():
        make_private_folder(path.parent, "socket", gid)
    if not path.parent.is_dir():
        raise HostError(f"{setting}: there is no folder {path.parent}", remedy="make it first")
    return FileLock(path.with_name(path.name + ".lock"), peer)
