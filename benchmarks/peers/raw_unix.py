"""Plain bytes over a Unix stream socket, under a name that the kernel chooses and no file has."""

from __future__ import annotations

import socket

from .messages import Job
from .raw_stream import StreamReceiver, StreamSender
from .sides import Receiver, Sender


def make_sender(_: Job) -> Sender:
    """Makes it."""
    return StreamSender(socket.AF_UNIX, None)


def make_receiver(job: Job) -> Receiver:
    """Makes it."""
    return StreamReceiver(socket.AF_UNIX, None, b"", job)
