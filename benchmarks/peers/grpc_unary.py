"""One unary gRPC call a micro-batch, a pickled dict of arrays: what people mostly do today.

The message is unpickled and its arrays are copied into the warm memory. A gRPC message holds 2 GiB at most.
"""

from __future__ import annotations

# What is measured is what others do. Sender and receiver are this benchmark's own, on the loopback.
import pickle  # noqa: TID251 - this peer's way, see above

import grpc  # type: ignore[import-untyped]
import numpy as np

from .grpc_server import PATH, GrpcReceiver, GrpcSender
from .messages import Job
from .sides import ROUND_S, Ids, MicroBatch, Receiver, Sender


class UnaryCallSender(GrpcSender):
    """Pickles and sends."""

    def send(self, micro_batch: MicroBatch) -> None:
        """See `Sender`."""
        self.channel.unary_unary(PATH)(pickle.dumps(micro_batch.tree, pickle.HIGHEST_PROTOCOL), timeout=ROUND_S)


class UnaryCallReceiver(GrpcReceiver):
    """Unpickles and copies."""

    def take(self, request: bytes) -> int:
        """See `GrpcReceiver`."""
        tree: dict[str, Ids] = pickle.loads(request)  # noqa: S301 - from this benchmark's own sender
        at = 0
        for leaf in tree.values():
            np.copyto(self.target[at : at + leaf.nbytes], leaf.view(np.uint8))
            at += leaf.nbytes
        return at


def make_sender(_: Job) -> Sender:
    """Makes it."""
    return UnaryCallSender()


def make_receiver(job: Job) -> Receiver:
    """Makes it."""
    return UnaryCallReceiver(job, grpc.unary_unary_rpc_method_handler)
