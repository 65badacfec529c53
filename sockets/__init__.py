"""What the daemon and the trainer's worker both ask of sockets: endpoints, chunks, and a way into the loop."""

from .chunk_receiver import ChunkReceiver, Chunks
from .endpoint import Endpoint, control_frame_limit, only_frame
from .mailbox import Mailbox
from .signals import stopped_by_sigterm, waking_signals

__all__ = [
    "ChunkReceiver",
    "Chunks",
    "Endpoint",
    "Mailbox",
    "control_frame_limit",
    "only_frame",
    "stopped_by_sigterm",
    "waking_signals",
]
