"""One client-streaming gRPC call a micro-batch: chunks of 1 MiB, each copied into the warm memory."""

from __future__ import annotations

from collections.abc import Iterable

import grpc  # type: ignore[import-untyped]
import numpy as np

from .grpc_server import PATH, GrpcReceiver, GrpcSender
from .messages import Job
from .sides import CHUNK_BYTES, ROUND_S, MicroBatch, Receiver, Sender


class StreamCallSender(GrpcSender):
    """Streams the bytes; gRPC takes nothing but `bytes`, so each chunk is copied once."""

    def send(self, micro_batch: MicroBatch) -> None:
        """See `Sender`."""
        whole = micro_batch.whole
        chunks = (whole[at : at + CHUNK_BYTES].tobytes() for at in range(0, len(whole), CHUNK_BYTES))
        self.channel.stream_unary(PATH)(chunks, timeout=ROUND_S)


class StreamCallReceiver(GrpcReceiver):
    """Takes the stream."""

    def take(self, request: Iterable[bytes]) -> int:
        """See `GrpcReceiver`."""
        at = 0
        for chunk in request:
            np.copyto(self.target[at : at + len(chunk)], np.frombuffer(chunk, np.uint8))
            at += len(chunk)
        return at


def make_sender(_: Job) -> Sender:
    """Makes it."""
    return StreamCallSender()


def make_receiver(job: Job) -> Receiver:
    """Makes it."""
    return StreamCallReceiver(job, grpc.stream_unary_rpc_method_handler)
