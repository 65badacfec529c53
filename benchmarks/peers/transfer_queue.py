"""TransferQueue with its default storage, put and got; the receiver's process starts Ray on this host.

A micro-batch is put by the sender, into a storage process of TransferQueue's own, and got by the receiver, which
copies it into the warm memory. A byte over TCP tells the receiver that there is something, and the sender that it
was got.
Ray's and TransferQueue's other processes are not in what sender and receiver cost.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import Any, Final

import numpy as np
import ray  # type: ignore[import-not-found]
import torch  # type: ignore[import-not-found]
import transfer_queue  # type: ignore[import-not-found]

from .messages import Job
from .sides import ROUND_S, Ids, MicroBatch, Receiver, Sender, check_whole

_PARTITION: Final = "train"
_KEY: Final = "micro-batch"
_CONFIG: Final = {"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}
_ACTORS: Final = 8
_OBJECT_STORE_BYTES: Final = 80 << 20


class TransferQueueSender(Sender):
    """Puts, and waits until it was got."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._line: socket.socket | None = None

    def connect(self, address: str) -> None:
        """See `Sender`."""
        self.close()
        cluster, _, port = address.rpartition("/")
        _join_ray(self._open, address=cluster)
        self._line = self._open.enter_context(socket.create_connection(("127.0.0.1", int(port)), ROUND_S))

    def send(self, micro_batch: MicroBatch) -> None:
        """See `Sender`."""
        fields = {name: torch.from_numpy(leaf) for name, leaf in micro_batch.tree.items()}
        assert self._line is not None
        transfer_queue.kv_put(_KEY, _PARTITION, fields)
        self._line.sendall(b".")
        _wait_for_byte(self._line)

    def settle(self) -> None:
        """Has it forgotten."""
        transfer_queue.kv_clear(_KEY, _PARTITION)

    def close(self) -> None:
        """See `Sender`."""
        self._open.close()


class TransferQueueReceiver(Receiver):
    """Starts Ray and TransferQueue, and gets."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._open = contextlib.ExitStack()
        # A processor for each of the actors, of which most wait: Ray only counts them.
        _join_ray(self._open, num_cpus=_ACTORS, object_store_memory=_OBJECT_STORE_BYTES, _temp_dir=job.folder)
        self._listener = self._open.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._listener.settimeout(ROUND_S)
        self._line: socket.socket | None = None
        self.address = f"{ray.get_runtime_context().gcs_address}/{self._listener.getsockname()[1]}"

    def receive(self, nbytes: int) -> float:
        """See `Receiver`."""
        if self._line is None:
            self._line = self._open.enter_context(self._listener.accept()[0])
            self._line.settimeout(ROUND_S)
        _wait_for_byte(self._line)
        got = transfer_queue.kv_batch_get(_KEY, _PARTITION)
        at = 0
        for name in sorted(got.keys()):
            leaf: Ids = got[name].unbind()[0].numpy()
            np.copyto(self.target[at : at + leaf.nbytes], leaf.view(np.uint8))
            at += leaf.nbytes
        ended_at = time.monotonic()
        check_whole("a micro-batch by TransferQueue", at, nbytes)
        self._line.sendall(b".")
        return ended_at

    def close(self) -> None:
        """See `Receiver`."""
        self._open.close()


def _join_ray(stack: contextlib.ExitStack, **options: Any) -> None:
    # Else Ray makes a token in the user's home.
    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="error", **options)
    stack.callback(ray.shutdown)
    transfer_queue.init(_CONFIG)
    stack.callback(transfer_queue.close)


def _wait_for_byte(line: socket.socket) -> None:
    if not line.recv(1):
        raise ConnectionError("the other side hung up")


def make_sender(_: Job) -> Sender:
    """Makes it."""
    return TransferQueueSender()


def make_receiver(job: Job) -> Receiver:
    """Makes it."""
    return TransferQueueReceiver(job)
