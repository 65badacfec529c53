"""The trainer of the soak: takes micro-batches, trains on them with JAX, and writes each down before and after.

Run as `python -m forebay.benchmarks.soak_trainer SETTINGS`. It ends in order at SIGTERM, and at once when its
standard input does.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final

import jax
import jax.numpy as jnp
import msgspec

from forebay.daemon import start_logging
from forebay.trainer import StagePromote, StagingQueue, TrainerSettings, attach
from forebay.trainer.conversation import Conversation
from forebay.wire import BrokenError, Done, Finished, ForebayError, TrainerReply, TrainerRequest, words_of

from .soak_payload import digest
from .soak_words import QUEUE, Book, Did, TrainerLine, now, say_at_work

_WAIT_S: Final = 3600.0
"""For a micro-batch: that there is none for long is for the watchdog of the soak to say."""


_LONG_STEP_S: Final = 0.3
_LONG_STEPS: Final = 0.05
"""Share of the steps that take long, so that micro-batches wait now and then, and may be reset or become stale."""


class SoakTrainerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a life of the trainer is given.

    Attributes:
        life: Which of its processes this is, from 1 on.
        endpoint: The daemon's trainer endpoint.
        book: Its file.
        cap: Micro-batches that it may have ahead on the device.
        attach_s: Seconds to wait for the daemon.
    """

    life: int
    endpoint: str
    book: str
    cap: int
    attach_s: float


@jax.jit
def _loss_and_gradient(weights: jax.Array, inputs: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    loss: tuple[jax.Array, jax.Array] = jax.value_and_grad(lambda w: jnp.mean((inputs @ w - targets) ** 2))(
        weights
    )
    return loss


class Trainer:
    """One life."""

    def __init__(self, settings: SoakTrainerSettings) -> None:
        self._settings = settings
        self._book = Book(Path(settings.book))
        self._leaves = threading.Event()
        self._queue: StagingQueue | None = None
        self._weights = jnp.zeros(8)

    def leave(self) -> None:
        """Has it end in order; for a signal's handler."""
        self._leaves.set()
        if self._queue is not None:
            # In a thread: the handler may have interrupted its own thread while that holds the queue's lock.
            threading.Thread(target=self._queue.look_again, daemon=True).start()

    def run(self) -> int:
        """Trains until it is to leave; returns the exit code."""
        settings = self._settings
        own = TrainerSettings(stage_batch="stage", max_device_batches=settings.cap)
        try:
            self._queue = attach(
                queue=QUEUE, endpoint=settings.endpoint, settings=own, timeout_s=settings.attach_s
            )
            say_at_work()
            self._train(self._queue)
        except ForebayError as error:
            self._failed(error)
            return 1
        self._close(self._queue)
        self._write(Did.LEFT)
        return 0

    def _close(self, queue: StagingQueue) -> None:
        try:
            queue.close()
        except BrokenError as error:
            # It names the keys that the daemon never heard of.
            self._failed(error)
            for key in error.got if isinstance(error.got, list) else ():
                self._write(Did.UNHEARD, key)

    def _train(self, queue: StagingQueue) -> None:
        while not self._leaves.is_set():
            try:
                batch = queue.take(timeout_s=_WAIT_S, given_up=self._leaves.is_set)
            except ForebayError:
                if self._leaves.is_set():
                    return
                raise
            with batch:
                self._write(Did.BEGIN, batch.key, digest=digest(batch.tree))
                example = batch.tree["example"]
                loss, gradient = _loss_and_gradient(self._weights, example.inputs, example.targets)
                batch.dispatched(loss)
                self._weights = jax.block_until_ready(self._weights - 0.01 * gradient)
                if random.Random(batch.key).random() < _LONG_STEPS:
                    time.sleep(_LONG_STEP_S)
                # Once more: a slot that is filled anew must not change what is held here.
                self._write(Did.END, batch.key, digest=digest(batch.tree))

    def heard(self, key: str) -> None:
        """Writes down that the daemon knows a key to be consumed."""
        self._write(Did.HEARD, key)

    def transferred(self, key: str, began_at: float) -> None:
        """Writes down when a transfer to the device began."""
        self._write(Did.TRANSFER, key, at=began_at)

    def _failed(self, error: ForebayError) -> None:
        self._write(Did.ERROR, code=type(error).__name__, words=words_of(error))

    def _write(
        self, what: Did, key: str = "", *, at: float = 0.0, digest: str = "", code: str = "", words: str = ""
    ) -> None:
        line = TrainerLine(
            at=at or now(), life=self._settings.life, what=what, key=key, digest=digest, code=code, words=words
        )
        self._book.write(line)


class TransferNotes(logging.Handler):
    """Has a trainer note when each transfer to its device began: the log's records carry their events.

    Args:
        trainer: The trainer.
    """

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self._trainer = trainer

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        event = getattr(record, "event", None)
        if isinstance(event, StagePromote):
            self._trainer.transferred(event.key, event.ended_at - event.transfer_s)


def note_confirmations(trainer: Trainer) -> None:
    """Has this process note when the daemon confirms that a micro-batch is consumed: from then on it knows."""
    heard = Conversation.heard

    def noting(self: Conversation, reply: TrainerReply, now: float) -> list[TrainerRequest]:
        if isinstance(reply, Done):
            for report in self.unconfirmed:
                if isinstance(report, Finished) and report.id == reply.id and not report.reason:
                    trainer.heard(report.key)
        return heard(self, reply, now)

    Conversation.heard = noting  # type: ignore[method-assign]


def _end_with_parent() -> None:
    # os.read, not sys.stdin: a thread inside of a buffered read would upset the interpreter's exit.
    while os.read(0, 4096):
        pass
    os._exit(1)


def main() -> None:
    """Runs as a process of its own."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    start_logging("info")
    trainer = Trainer(msgspec.json.decode(sys.argv[1], type=SoakTrainerSettings))
    note_confirmations(trainer)
    logging.getLogger("forebay").addHandler(TransferNotes(trainer))
    signal.signal(signal.SIGTERM, lambda _number, _frame: trainer.leave())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(trainer.run())


if __name__ == "__main__":
    main()
