"""What a worker says of itself."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable

from forebay.shm import this_peer
from forebay.version import VERSION
from forebay.wire import (
    PROTOCOL_VERSION,
    Hello,
    Limits,
    RefusalCode,
    Refused,
    WorkerStatus,
    WorkerWelcome,
    printable,
)

from .call_books import CallBooks
from .settings import TrainerSettings
from .worker_methods import EngineMethods


class WorkerCard:
    """Tells who a worker is, what it takes and how it is.

    Args:
        name: Of the worker, for people.
        settings: The trainer's.

    Attributes:
        peer: The worker's process.
        epoch: Another one in each run.
        limits: Upper bounds on what is sent to it.
    """

    def __init__(self, name: str, settings: TrainerSettings) -> None:
        self.peer = this_peer(name)
        self.epoch = uuid.uuid4().hex
        self.limits = Limits(max_micro_batch_bytes=settings.inline_max_bytes, size_setting="inline_max_bytes")
        self._mode = str(settings.mode)
        self._data_protection = settings.protection_of_data
        self._started_at = time.monotonic()

    def welcome(
        self, hello: Hello, data_endpoint: str, *, is_fed: bool, methods: Iterable[str]
    ) -> WorkerWelcome | Refused:
        """Answers a hello, or refuses it for its version."""
        if hello.version != PROTOCOL_VERSION:
            words = f"the caller speaks protocol {hello.version}, the worker {PROTOCOL_VERSION}"
            return Refused(id=hello.id, code=RefusalCode.VERSION, words=words)
        return WorkerWelcome(
            id=hello.id,
            version=PROTOCOL_VERSION,
            software=VERSION,
            epoch=self.epoch,
            peer=self.peer,
            data_endpoint=data_endpoint,
            limits=self.limits,
            data_protection=self._data_protection,
            mode=self._mode,
            is_fed=is_fed,
            methods=tuple(methods),
        )

    def status(self, message_id: int, engine: EngineMethods, books: CallBooks) -> WorkerStatus:
        """Tells what the worker does now."""
        now = time.monotonic()
        return WorkerStatus(
            id=message_id,
            software=VERSION,
            epoch=self.epoch,
            peer=self.peer,
            uptime_s=now - self._started_at,
            mode=self._mode,
            state=engine.state,
            failure=printable(engine.failure),
            draining=books.draining,
            calls=tuple(call.status(now) for call in books.unfinished),
            counters=dict(books.counters + books.incoming.faults()),
        )
