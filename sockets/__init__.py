"""What the daemon and the trainer's worker both ask of sockets: endpoints, chunks, and a way into the loop."""

from .bulk_receiver import BulkReceiver
from .chunk_receiver import ChunkReceiver
from .endpoint import Endpoint, control_frame_limit, milliseconds_until
from .liveness import ping
from .mailbox import Mailbox
from .signals import stopped_by_sigterm, waking_signals

__all__ = [
    "BulkReceiver",
    "ChunkReceiver",
    "Endpoint",
    "Mailbox",
    "control_frame_limit",
    "milliseconds_until",
    "ping",
    "stopped_by_sigterm",
    "waking_signals",
]
