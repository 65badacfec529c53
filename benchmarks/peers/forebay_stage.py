"""Forebay's own client; what receives is a daemon, so there is no receiver here."""

from __future__ import annotations

import asyncio
from typing import Any

from forebay.orchestrator_client import Refusal, StagingClient
from forebay.wire import BrokenError, DataProtection

from .messages import Job
from .sides import MicroBatch, Sender


class StageSender(Sender):
    """Stages with one daemon: timed from the call to its return, which is from offer to publication.

    Args:
        job: What the process was started with.
    """

    def __init__(self, job: Job) -> None:
        # All of them, also the empty ones: what this user's environment says of keys, and of what has to guard
        # the data, is for other daemons.
        self._options: dict[str, Any] = {
            "codec": job.codec,
            "connections": job.connections,
            "client_key_file": job.client_key_file,
            "server_key_file": job.server_key_file,
            "least_data_protection": DataProtection.NONE,
        }
        self._runner = asyncio.Runner()
        self._client: StagingClient | None = None
        self._staged = 0

    def connect(self, address: str) -> None:
        """See `Sender`; the connections for bulk data are made at the first staging, and are timed with it."""
        self._hang_up()
        self._client = StagingClient(address, name="bench-ingest", **self._options)
        self._runner.run(self._client.__aenter__())

    def send(self, micro_batch: MicroBatch) -> None:
        """See `Sender`."""
        assert self._client is not None
        self._staged += 1
        result = self._runner.run(self._client.stage(micro_batch.tree, key=f"micro-batch-{self._staged}"))
        if isinstance(result, Refusal):
            raise BrokenError(f"the daemon refused to stage: {result.words}")

    def settle(self) -> None:
        """Drops what was staged, so that its slot is free again."""
        assert self._client is not None
        self._runner.run(self._client.reset())

    def close(self) -> None:
        """See `Sender`."""
        self._hang_up()
        self._runner.close()

    def _hang_up(self) -> None:
        if self._client is not None:
            self._runner.run(self._client.close())
            self._client = None


def make_sender(job: Job) -> Sender:
    """Makes it."""
    return StageSender(job)
