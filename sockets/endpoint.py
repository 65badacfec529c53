"""Binding sockets, and telling who holds an endpoint that cannot be bound."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path

import zmq

from forebay.shm import FileLock, make_private_folder, runtime_folder, share, this_peer
from forebay.wire import (
    PROTOCOL_VERSION,
    HeldError,
    Hello,
    HostError,
    Message,
    Peer,
    ProtocolError,
    SettingError,
    Welcome,
    check_endpoint,
    decode_call_reply,
    decode_control_reply,
    encode_message,
)

from .gate import CURVE_FRAME_BYTES, ServerKeys
from .liveness import answer_pings

_PROBE_MS = 1000
_CONTROL_SLACK_BYTES = 64 << 10
_MESSAGES_PER_TURN = 16
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
        keys: Guard a tcp address; the context must have its `Gate`. An ipc path is guarded by the file system.
        gid: A group that may connect to an ipc path beside this user; None for nobody.

    Attributes:
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
        keys: ServerKeys | None = None,
        gid: int | None = None,
    ) -> None:
        self._gid = gid
        self._lock = _claim_ipc(address, setting, peer, gid) if address.startswith("ipc://") else None
        self._users: OrderedDict[bytes, str] = OrderedDict()
        self.is_guarded = keys is not None and address.startswith("tcp://")
        self.socket = context.socket(kind)
        try:
            # Before it is bound, since each connection takes it over: one that is lost with answers unsent would
            # otherwise keep them, and the context from ending, for ever. `close` gives those of the others time.
            self.socket.linger = 0
            self.socket.maxmsgsize = max_frame_bytes
            self.socket.rcvhwm = receive_high_water
            answer_pings(self.socket)
            if kind == zmq.ROUTER:
                self.socket.router_mandatory = True
            if keys is not None and self.is_guarded:
                keys.guard(self.socket)
                self.socket.maxmsgsize = max_frame_bytes + CURVE_FRAME_BYTES
            self._bind(context, address, setting)
        except BaseException:
            self.close(linger_ms=0)
            raise
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def _bind(self, context: zmq.Context[zmq.Socket[bytes]], address: str, setting: str) -> None:
        if not address.startswith(("ipc://", "tcp://")):
            raise SettingError(f"setting {setting}", got=address, limit="an ipc:// or tcp:// address")
        try:
            self._bind_privately(address)
        except zmq.ZMQError as error:
            if error.errno == errno.EADDRINUSE:
                raise HeldError(
                    f"{setting} {address} is held by {_who_answers(context, address)}",
                    remedy=f"stop it first, or set {setting} to another address",
                ) from error
            raise HostError(f"{setting} {address} cannot be bound: {error.strerror}") from error

    def _bind_privately(self, address: str) -> None:
        if self._lock is None:
            self.socket.bind(address)
            return
        # Whatever another thread makes meanwhile is private too; an ipc path must not be open for a moment.
        before = os.umask(0o177)
        try:
            self.socket.bind(address)
        finally:
            os.umask(before)
        share(self._lock.path.with_suffix(""), private=0o600, shared=0o660, gid=self._gid)

    def received(self) -> Iterator[tuple[bytes, str, list[bytes]]]:
        """Yields who sent which frames to a ROUTER, up to one turn's share; waits for nothing.

        Yields:
            The sender's routing id; the key that it proved to have, empty where there are none; the frames.
        """
        for _ in range(_MESSAGES_PER_TURN):
            try:
                sender, user, frames = self._receive()
            except zmq.Again:
                return
            yield sender, user, frames

    def _receive(self) -> tuple[bytes, str, list[bytes]]:
        if not self.is_guarded:
            sender, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
            return sender, "", frames
        first, *rest = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        user = ""
        with contextlib.suppress(IndexError, zmq.ZMQError):  # nothing in it, or nobody said who sent it
            user = str(rest[-1].get("User-Id"))
        self._note_user(first.bytes, user)
        return first.bytes, user, [frame.bytes for frame in rest]

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
        self.socket.close(linger=linger_ms)
        if self._lock is not None:
            self._lock.path.with_suffix("").unlink(missing_ok=True)
            self._lock.close(remove=True)


def control_frame_limit(max_manifest_bytes: int) -> int:
    """Returns the largest control frame: a manifest and what surrounds it."""
    return max_manifest_bytes + _CONTROL_SLACK_BYTES


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
    check_endpoint(setting, address)
    if not path.name or (path.exists() and not path.is_socket()):
        # ZeroMQ would remove whatever file lies there.
        raise SettingError(f"setting {setting}", got=address, limit="ipc:// and a path that is free or a socket's")
    if path.parent == runtime_folder():
        make_private_folder(path.parent, "socket", gid)
    if not path.parent.is_dir():
        raise HostError(f"{setting}: there is no folder {path.parent}", remedy="make it first")
    return FileLock(path.with_name(path.name + ".lock"), peer)


def _who_answers(context: zmq.Context[zmq.Socket[bytes]], address: str) -> str:
    with context.socket(zmq.DEALER) as probe:
        probe.linger = 0
        try:
            probe.connect(address.replace("*", "127.0.0.1"))
        except zmq.ZMQError:
            return "a process that cannot be asked who it is"
        hello = Hello(id=1, version=PROTOCOL_VERSION, peer=this_peer("forebay probe"))
        probe.send(encode_message(hello))
        if not probe.poll(_PROBE_MS):
            return "a process that does not answer as a Forebay daemon or worker"
        return _who_says(probe.recv())


def _who_says(frame: bytes) -> str:
    answer: Message | None = None
    for decode in (decode_control_reply, decode_call_reply):
        with contextlib.suppress(ProtocolError):
            answer = decode(frame)
    if isinstance(answer, Welcome):
        return f"{answer.peer.name} pid {answer.peer.pid} on {answer.peer.host}"
    if answer is None:
        return "a process that does not speak Forebay's protocol"
    return "a process that does not answer as a Forebay daemon or worker"
