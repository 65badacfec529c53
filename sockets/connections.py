"""How many connections a bound socket has, and how many it may have.

libzmq ends the process when an ipc listener finds no descriptor free, and spins when a tcp listener finds none. So
the descriptors must never run out. ZeroMQ cannot be told to refuse a connection, and to unbind would end all that
there are. But its monitor names the descriptor of each connection, and one that is shut down here is closed there
like one whose peer went away; its peer dials again by itself.

The door is closed as well until some have left: an ipc endpoint's path is moved away, a tcp listener gets a filter
that drops what comes for it. That takes one call, whatever the number of those who come, and so it is fast enough
where few descriptors are left.

ZeroMQ's thread waits when `BURST` of the monitor's events are unread. So no more connections than that can come
before this side looks, however long it takes to look.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import resource
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from forebay.wire import Event, Faults

from .failed_handshakes import EVENTS, FailedHandshakes
from .limited_log import LimitedLog
from .telling import tell

log = logging.getLogger("forebay.sockets")

BURST: Final = 1001
"""Events that a monitor holds: its own high-water mark, 1000, and its reader's. Tried with libzmq 4.3.5."""

_HIDDEN: Final = ".full"
_SO_ATTACH_FILTER: Final = 26
_SO_DETACH_FILTER: Final = 27
_RETURN_0: Final = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0), 8)
_DROP_ALL: Final = struct.pack("@HP", 1, ctypes.addressof(_RETURN_0))
"""A socket filter of one instruction: keep 0 bytes of whatever comes. Source: socket(7), linux/filter.h."""

_SPARE_DESCRIPTORS: Final = 64
"""For ZeroMQ's own, for files that are open for a moment, and for what other parts of the process open later."""


class Headcount:
    """Who is connected, by descriptor, out of who came and who left.

    With several of ZeroMQ's threads, one tells of those who come and another of those who leave, so that who left
    at once may be told to have left before it is told to have come. But ZeroMQ tells of both before it closes the
    descriptor or takes the next connection: of two that had one number, all about the first is told first.

    Args:
        limit: How many may be.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._present: set[int] = set()
        self._surplus: set[int] = set()
        self._left_early: set[int] = set()

    def __len__(self) -> int:
        return len(self._present)

    def came(self, descriptor: int) -> bool:
        """Notes one that came; returns whether it is one too many."""
        if descriptor in self._left_early:
            self._left_early.remove(descriptor)
            return False
        is_surplus = len(self) >= self._limit
        (self._surplus if is_surplus else self._present).add(descriptor)
        return is_surplus

    def left(self, descriptor: int) -> None:
        """Notes one that left."""
        for known in (self._present, self._surplus):
            if descriptor in known:
                known.remove(descriptor)
                return
        self._left_early.add(descriptor)

    def is_surplus(self, descriptor: int) -> bool:
        """Whether one that is there, as far as is known, is one too many."""
        return descriptor in self._surplus


class Connections:
    """Counts a socket's connections and shuts those beyond the limit; for the thread that has the socket.

    Args:
        bound: The socket.
        setting: Name of its address's setting, for the log.
        limit: Connections that it may have.
        faults: Count handshakes that fail.

    Attributes:
        monitor: Readable when there is something for `attend`.
        refused_count: Connections that were shut because there were too many.
    """

    def __init__(self, bound: zmq.Socket[bytes], setting: str, limit: int, faults: Faults) -> None:
        self._bound = bound
        self._setting = setting
        self._limit = limit
        self._log = LimitedLog(log)
        self._handshakes = FailedHandshakes(bound, setting, faults, self._peer_of)
        self._present = Headcount(limit)
        self._unwanted: set[int] = set()
        self._listener = -1
        self._is_closed = False
        self.refused_count = 0
        name = f"inproc://connections-{id(self)}"
        bound.monitor(name, zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | EVENTS)
        self.monitor = bound.context.socket(zmq.PAIR)
        self.monitor.linger = 0
        self.monitor.rcvhwm = 1
        self.monitor.connect(name)

    def __repr__(self) -> str:
        return f"Connections({self._setting}, {len(self)} of {self._limit})"

    def __len__(self) -> int:
        return len(self._present)

    def attend(self) -> None:
        """Hears who came and who left, and shuts what is too many."""
        while True:
            try:
                event = parse_monitor_message(self.monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                break
            self._hear(event["event"], event["value"])
        while self._unwanted:
            descriptor = self._unwanted.pop()
            if self._present.is_surplus(descriptor):  # it may have left by itself
                self._shut(descriptor)
        # Some must have left: else one that comes and goes would have the door closed and opened all the time.
        if self._is_closed and len(self) <= self._limit - max(1, self._limit // 8):
            self._open_door()

    def _hear(self, event: int, descriptor: int) -> None:
        if self._handshakes.hear(event, descriptor):
            return
        if event == zmq.EVENT_LISTENING:
            self._listener = descriptor
        elif event == zmq.EVENT_DISCONNECTED:
            self._present.left(descriptor)
        elif self._present.came(descriptor):
            self._unwanted.add(descriptor)
            self._close_door()

    def _close_door(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        fields = {"endpoint": self._setting, "max_connections": self._limit}
        self._log.tell(logging.WARNING, Event.CONNECTIONS_FULL, **fields)
        with contextlib.suppress(OSError):
            if (path := ipc_path(self._address())) is not None:
                path.rename(hidden_path(path))
                return
            with _socket_of(self._listener) as listener:
                listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _DROP_ALL)

    def _open_door(self) -> None:
        self._is_closed = False
        fields = {"endpoint": self._setting, "refused": self.refused_count}
        self._log.tell(logging.INFO, Event.CONNECTIONS_TAKEN_AGAIN, **fields)
        with contextlib.suppress(OSError):
            if (path := ipc_path(self._address())) is not None:
                hidden_path(path).rename(path)
                return
            with _socket_of(self._listener) as listener:
                listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)

    def _address(self) -> str:
        return self._bound.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def _shut(self, descriptor: int) -> None:
        """Shuts a connection down, unless its number is something else's by now."""
        self.refused_count += 1
        self._handshakes.shut(descriptor)
        with contextlib.suppress(OSError), _socket_of(descriptor) as connection:
            if self._is_ours(connection):
                connection.shutdown(socket.SHUT_RDWR)

    def _peer_of(self, descriptor: int) -> str:
        with contextlib.suppress(OSError), _socket_of(descriptor) as connection:
            if connection.family == socket.AF_UNIX:
                return "local"
            if self._is_ours(connection):
                host, port, *_ = connection.getpeername()
                return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return "unknown"

    def _is_ours(self, connection: socket.socket) -> bool:
        address, name = self._address(), connection.getsockname()
        if connection.family == socket.AF_UNIX:
            return address == f"ipc://{name}"
        return address.startswith("tcp://") and address.rpartition(":")[2] == str(name[1])

    def close(self) -> None:
        """Looks no more; before the socket is closed."""
        with contextlib.suppress(zmq.ZMQError):  # the context may have ended
            # Read first: ZeroMQ's thread may wait for that, and disabling the monitor waits for ZeroMQ's thread.
            while self.monitor.poll(0):
                self.monitor.recv_multipart(zmq.NOBLOCK)
            self._bound.disable_monitor()
        self.monitor.close()


@contextlib.contextmanager
def _socket_of(descriptor: int) -> Iterator[socket.socket]:
    """Lends the socket of a descriptor that is another's. No copy: there may be no descriptor left for one."""
    lent = socket.socket(fileno=descriptor)
    try:
        yield lent
    finally:
        lent.detach()


def ipc_path(address: str) -> Path | None:
    """Returns the path of an ipc address; None for another."""
    return Path(address.removeprefix("ipc://")) if address.startswith("ipc://") else None


def hidden_path(path: Path) -> Path:
    """Returns where an ipc endpoint's socket lies while it takes no connections."""
    return path.with_name(path.name + _HIDDEN)


def fitting_connections(wanted: int, *, setting: str, endpoints: int, others: int = 0) -> int:
    """Returns how many connections each of several endpoints may have, so that descriptors never run out.

    Args:
        wanted: The setting's value; what fits may be less, and then a warning says so.
        setting: Its name, for the log.
        endpoints: How many there are.
        others: Other uses of descriptors that may need as many as one endpoint has.

    Returns:
        At least 1. Where the descriptors suffice for it, `BURST` more may come to each endpoint at once; where
        they do not, it depends on how fast this side looks.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    fitting = connections_within(soft, endpoints=endpoints, others=others)
    if fitting < wanted:
        fields = {setting: fitting, "wanted": wanted, "descriptors": soft}
        tell(log, logging.WARNING, Event.CONNECTIONS_LOWERED, **fields)
    return min(wanted, fitting)


def connections_within(descriptors: int, *, endpoints: int, others: int = 0) -> int:
    """Returns how many connections each of several endpoints may have with so many descriptors.

    Args:
        descriptors: That this process may have; those that it has open now do not count.
        endpoints: See `fitting_connections`.
        others: See `fitting_connections`.
    """
    open_now = len(os.listdir("/proc/self/fd"))
    room, shares = descriptors - open_now - _SPARE_DESCRIPTORS, endpoints + others
    return max((room - endpoints * BURST) // shares, room // (4 * shares), 1)
