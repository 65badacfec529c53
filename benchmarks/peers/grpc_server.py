"""A gRPC server and channel on the loopback, without generated code and without a limit on messages."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc  # type: ignore[import-untyped]

from .messages import Job
from .sides import ROUND_S, Arrivals, Receiver, Sender

_SERVICE: Final = "forebay.bench.Ingest"
_METHOD: Final = "Put"
PATH: Final = f"/{_SERVICE}/{_METHOD}"
_OPTIONS: Final = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_STOP_S: Final = 1.0


class GrpcSender(Sender):
    """Has a channel."""

    def __init__(self) -> None:
        self.channel: Any = None

    def connect(self, address: str) -> None:
        """See `Sender`."""
        self.close()
        self.channel = grpc.insecure_channel(address, _OPTIONS)
        grpc.channel_ready_future(self.channel).result(ROUND_S)

    def close(self) -> None:
        """See `Sender`."""
        if self.channel is not None:
            self.channel.close()


class GrpcReceiver(Receiver):
    """Serves one method.

    Args:
        job: See `Receiver`.
        as_handler: Makes gRPC's handler of a method: `grpc.unary_unary_rpc_method_handler`, say.
    """

    def __init__(self, job: Job, as_handler: Callable[[Any], Any]) -> None:
        super().__init__(job)
        self._arrivals = Arrivals("a micro-batch by gRPC")
        self._server = grpc.server(ThreadPoolExecutor(1), options=_OPTIONS)
        handlers = {_METHOD: as_handler(self._put)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _put(self, request: Any, _context: Any) -> bytes:
        nbytes = self.take(request)
        self._arrivals.put(nbytes, time.monotonic())
        return b""

    @abc.abstractmethod
    def take(self, request: Any) -> int:
        """Takes a request into the memory, on a thread of the server; returns how many bytes it was."""

    def receive(self, nbytes: int) -> float:
        """See `Receiver`."""
        return self._arrivals.wait(nbytes)

    def close(self) -> None:
        """See `Receiver`."""
        self._server.stop(None).wait(_STOP_S)
