"""The trainer of the benchmarks of hand-overs: takes what it is lent, up to numpy views, and finishes it.

Run as `python -m forebay.benchmarks.handoff_trainer TRAINER_ENDPOINT CAP`. It says one line when it is attached,
answers each `Take` with a `Taken`, and ends when its standard input does, which is also when whoever started it is
gone.
"""

from __future__ import annotations

import logging
import sys
import time

from forebay.trainer import StagingQueue, TrainerSettings
from forebay.trainer.daemon_feed import DaemonFeed
from forebay.trainer.host_tree import HostTree
from forebay.trainer.slot_reader import SlotReader
from forebay.wire import ForebayError, Lend

from .handoff_child import Requests, tell
from .handoff_transfer import ViewTransfer
from .handoff_words import Attached, Take, Taken

_ATTACH_S = 30.0
_QUEUE = "train"


def serve(trainer_endpoint: str, cap: int) -> None:
    """Serves until standard input ends."""
    requests = Requests()
    views_at_ns = note_views()
    settings = TrainerSettings(max_device_batches=cap)
    feed = DaemonFeed(trainer_endpoint, _QUEUE, timeout_s=_ATTACH_S)
    with StagingQueue(ViewTransfer(), settings=settings, feed=feed) as queue:
        tell(Attached(_QUEUE))
        requests.serve(Take, _Taker(queue, views_at_ns).take)


def note_views() -> list[int]:
    """Has this process note when the views of a lent slot's leaves are there.

    Returns:
        Monotonic nanoseconds; grows with each micro-batch that is read.
    """
    moments: list[int] = []
    read = SlotReader.read

    def noting(self: SlotReader, lend: Lend) -> tuple[str, HostTree]:
        found = read(self, lend)
        moments.append(time.monotonic_ns())
        return found

    SlotReader.read = noting  # type: ignore[method-assign]
    return moments


class _Taker:
    """Takes from a queue.

    Args:
        queue: The queue.
        views_at_ns: Grows when views are there: by one micro-batch ahead, or more.
    """

    def __init__(self, queue: StagingQueue, views_at_ns: list[int]) -> None:
        self._queue = queue
        self._views_at_ns = views_at_ns
        self._taken = 0

    def take(self, request: Take) -> Taken:
        """Does what is asked."""
        first, self._taken = self._taken, self._taken + request.count
        taken_at_ns = []
        cpu_s = time.process_time()
        for _ in range(request.count):
            with self._queue.take(timeout_s=request.timeout_s):
                taken_at_ns.append(time.monotonic_ns())
        cpu_s = time.process_time() - cpu_s
        return Taken(self._views_at_ns[first : self._taken], taken_at_ns, cpu_s)


def main() -> None:
    """Runs as a process of its own."""
    # That it waits for long is what the benchmark of idle processes is about.
    logging.getLogger("forebay.trainer").setLevel(logging.ERROR)
    try:
        serve(sys.argv[1], int(sys.argv[2]))
    except ForebayError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
