"""A child process of the benchmark: `python -m forebay.benchmarks.peers WAY sender|receiver JOB`.

It answers one line on standard input after the other, and ends when that does.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import sys
import time
from typing import Final

import msgspec

from forebay.benchmarks.handoff_child import Requests, tell

from .messages import Job, Receive, Received, Send, Sent, Started, Waiting
from .region import digest, map_warm
from .sides import MicroBatch, Receiver, Sender

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_MAX: Final = -4
_M_ARENA_MAX: Final = -8


def main(way: str, role: str, job: Job) -> None:
    """Runs the process.

    Args:
        way: Name of a module of this package.
        role: `sender` or `receiver`.
        job: What it works with.
    """
    if job.keeps_freed:
        _keep_freed_memory()
    requests = Requests()
    try:
        module = importlib.import_module(f".{way}", __package__)
    except ImportError as error:
        if (error.name or "forebay").startswith("forebay"):
            raise
        tell(Started(missing=f"not installed: {error}"))
        return
    if role == "sender":
        with contextlib.closing(module.make_sender(job)) as sender:
            _serve_sender(sender, job, requests)
    else:
        with contextlib.closing(module.make_receiver(job)) as receiver:
            _serve_receiver(receiver, requests)


def _keep_freed_memory() -> None:
    """Has glibc neither give freed memory back nor map any piece alone; other allocators do not know the call."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_ARENA_MAX, 1)):
            mallopt(option, value)


def _serve_sender(sender: Sender, job: Job, requests: Requests) -> None:
    source = map_warm(job.source)
    connected_to = ""

    def send(request: Send) -> Sent:
        nonlocal connected_to
        if request.address != connected_to:
            sender.connect(request.address)
            connected_to = request.address
        whole = source[: request.leaf_bytes * request.leaves]
        leaves = [
            whole[at : at + request.leaf_bytes].view("int16") for at in range(0, len(whole), request.leaf_bytes)
        ]
        micro_batch = MicroBatch(leaves, whole)
        began_at = time.monotonic()
        sender.send(micro_batch)
        ended_at = time.monotonic()
        sender.settle()
        return Sent(began_at, ended_at)

    tell(Started())
    requests.serve(Send, send)


def _serve_receiver(receiver: Receiver, requests: Requests) -> None:
    def receive(request: Receive) -> Received:
        tell(Waiting())
        ended_at = receiver.receive(request.nbytes)
        return Received(ended_at, digest(receiver.target[: request.nbytes]) if request.is_checked else "")

    tell(Started(address=receiver.address))
    requests.serve(Receive, receive)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], msgspec.json.decode(sys.argv[3], type=Job))
