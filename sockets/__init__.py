"""What the daemon and the trainer's worker both ask of sockets: endpoints, chunks, and a way into the loop."""

from .bulk_receiver import BulkReceiver
from .chunk_receiver import ChunkReceiver
from .connections import Connections, fitting_connections
from .endpoint import Endpoint, control_frame_limit, milliseconds_until, too_many_frames
from .mailbox import Mailbox
from .signals import stopped_by_sigterm, waking_signals

__all__ = [
    "BulkReceiver",
    "ChunkReceiver",
    "Connections",
    "Endpoint",
    "Mailbox",
    "control_frame_limit",
    "fitting_connections",
    "milliseconds_until",
    "stopped_by_sigterm",
    "too_many_frames",
    "waking_signals",
]
