"""Plain bytes over TCP on the loopback: one `sendall`, and `recv_into` of what is missing until all is there."""

from __future__ import annotations

import socket

from .messages import Job
from .raw_stream import StreamReceiver, StreamSender
from .sides import Receiver, Sender


def make_sender(_: Job) -> Sender:
    """Makes it."""
    return StreamSender(socket.AF_INET, None)


def make_receiver(job: Job) -> Receiver:
    """Makes it."""
    return StreamReceiver(socket.AF_INET, None, ("127.0.0.1", 0), job, waits_for_all=False)
