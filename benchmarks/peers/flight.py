"""Arrow Flight's DoPut: record batches of one uint8 column, 1 MiB each, copied into the warm memory."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import flight

from .messages import Job
from .sides import CHUNK_BYTES, Arrivals, Bytes, MicroBatch, Receiver, Sender

_SCHEMA: Final = pa.schema([("bytes", pa.uint8())])
_STOP_S: Final = 5.0


class FlightSender(Sender):
    """Wraps the bytes where they are; nothing is copied before Flight does."""

    def __init__(self) -> None:
        self._client: Any = None

    def connect(self, address: str) -> None:
        """See `Sender`."""
        self.close()
        self._client = flight.connect(address)

    def send(self, micro_batch: MicroBatch) -> None:
        """See `Sender`."""
        whole = micro_batch.whole
        writer, _ = self._client.do_put(flight.FlightDescriptor.for_path("micro-batch"), _SCHEMA)
        for at in range(0, len(whole), CHUNK_BYTES):
            chunk = whole[at : at + CHUNK_BYTES]
            column = pa.Array.from_buffers(pa.uint8(), len(chunk), [None, pa.py_buffer(chunk)])
            writer.write_batch(pa.record_batch([column], schema=_SCHEMA))
        writer.close()  # returns when the server is done

    def close(self) -> None:
        """See `Sender`."""
        if self._client is not None:
            self._client.close()


class _Server(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, target: Bytes, arrivals: Arrivals) -> None:
        self._target = target
        self._arrivals = arrivals
        super().__init__("grpc://127.0.0.1:0")

    def do_put(self, _context: Any, _descriptor: Any, reader: Any, _writer: Any) -> None:
        at = 0
        for chunk in reader:
            data = np.frombuffer(chunk.data.column(0).buffers()[1], np.uint8)
            np.copyto(self._target[at : at + len(data)], data)
            at += len(data)
        self._arrivals.put(at, time.monotonic())


class FlightReceiver(Receiver):
    """Serves DoPut."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._arrivals = Arrivals("a micro-batch by Flight")
        self._server = _Server(self.target, self._arrivals)
        self.address = f"grpc://127.0.0.1:{self._server.port}"

    def receive(self, nbytes: int) -> float:
        """See `Receiver`."""
        return self._arrivals.wait(nbytes)

    def close(self) -> None:
        """See `Receiver`."""
        # It waits for calls under way, of which there may be one from a sender that hangs.
        stopper = threading.Thread(target=self._server.shutdown, daemon=True)
        stopper.start()
        stopper.join(_STOP_S)


def make_sender(_: Job) -> Sender:
    """Makes it."""
    return FlightSender()


def make_receiver(job: Job) -> Receiver:
    """Makes it."""
    return FlightReceiver(job)
