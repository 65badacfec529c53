"""How each side of a connection notices that the other has vanished without a word."""

from __future__ import annotations

from typing import Final

import zmq

from forebay.wire import CONNECT_TIMEOUT_MS, HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS

_KEEPALIVE_IDLE_S: Final = 30
_KEEPALIVE_INTERVAL_S: Final = 10
_KEEPALIVE_PROBES: Final = 3


def ping(socket: zmq.Socket[bytes], timeout_ms: int = HEARTBEAT_TIMEOUT_MS) -> None:
    """Has a socket that connects ask its peer for signs of life; the peer gives it up if they stop.

    It takes all that its peer, which it trusts, sends: see `answer_pings` for what would happen otherwise.

    Args:
        socket: Before it connects.
        timeout_ms: Silence after which it connects anew.
    """
    socket.rcvhwm = 0
    socket.connect_timeout = CONNECT_TIMEOUT_MS
    socket.heartbeat_ivl = HEARTBEAT_MS
    socket.heartbeat_timeout = timeout_ms
    socket.heartbeat_ttl = HEARTBEAT_TIMEOUT_MS


def answer_pings(socket: zmq.Socket[bytes]) -> None:
    """Has a socket that is bound give up peers that fell silent, without asking them itself.

    libzmq 4.3.5 ends the process if its own heartbeat is due on a connection that broke while more was waiting to
    be read from it than the socket takes (an assertion in out_event). The kernel asks instead, where there is a
    network in between.
    """
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = _KEEPALIVE_IDLE_S
    socket.tcp_keepalive_intvl = _KEEPALIVE_INTERVAL_S
    socket.tcp_keepalive_cnt = _KEEPALIVE_PROBES
