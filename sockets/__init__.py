"""What more than one side asks of sockets: endpoints, chunks, keys, a way into a loop, and the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.lazy_names import lazy_names

if TYPE_CHECKING:
    from .bulk_receiver import BulkReceiver
    from .chunk_receiver import ChunkReceiver
    from .connections import Connections, fitting_connections
    from .endpoint import Endpoint, control_frame_limit, milliseconds_until, too_many_frames
    from .failed_handshakes import HANDSHAKE_FAILURES
    from .gate import AuthorisedFile, Gate, ServerKeys, load_server_keys
    from .keys import ClientKeys, KeyPair, load_client_keys, load_key_pair, load_public_key, make_key_files
    from .limited_log import LimitedLog, kind_of
    from .liveness import ping
    from .log_lines import JsonLines, TextLines
    from .mailbox import Mailbox
    from .peer_answers import PeerAnswers
    from .reach import LOOK_S, Finding, Who, why_silent
    from .signals import stopped_by_sigterm, waking_signals
    from .telling import tell, tell_failure, tell_object
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "HANDSHAKE_FAILURES",
    "LOOK_S",
    "AuthorisedFile",
    "BulkReceiver",
    "ChunkReceiver",
    "ClientKeys",
    "Connections",
    "Endpoint",
    "Finding",
    "Gate",
    "JsonLines",
    "KeyPair",
    "LimitedLog",
    "Mailbox",
    "PeerAnswers",
    "ServerKeys",
    "TextLines",
    "Who",
    "control_frame_limit",
    "fitting_connections",
    "kind_of",
    "load_client_keys",
    "load_key_pair",
    "load_public_key",
    "load_server_keys",
    "make_key_files",
    "milliseconds_until",
    "ping",
    "stopped_by_sigterm",
    "tell",
    "tell_failure",
    "tell_object",
    "too_many_frames",
    "waking_signals",
    "why_silent",
]
