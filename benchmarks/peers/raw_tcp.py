"""Plain bytes over TCP on the loopback."""

from __future__ import annotations

import socket

from .messages import Job
from .raw_stream import StreamReceiver, StreamSender
from .sides import Receiver, Sender


def make_sender(_: Job) -> Sender:
    """Makes it."""
    return StreamSender(socket.AF_INET)


def make_receiver(job: Job) -> Receiver:
    """Makes it."""
    return StreamReceiver(socket.AF_INET, ("127.0.0.1", 0), job)
