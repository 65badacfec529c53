"""The queues by name: which there are, which are in use, and what each was told of policy versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .micro_batch import MicroBatch
from .train_queue import Attachment, TrainQueue


class Queues:
    """All queues that are known.

    Args:
        max_queues: That may be in use.
        batches: Every micro-batch that is alive, by queue and key.

    Attributes:
        max_queues: That may be in use from now on.
    """

    def __init__(self, max_queues: int, batches: Mapping[tuple[str, str], MicroBatch]) -> None:
        self.max_queues = max_queues
        self._batches = batches
        self._by_name: dict[str, TrainQueue] = {}

    def __iter__(self) -> Iterator[TrainQueue]:
        return iter(self._by_name.values())

    def of(self, name: str) -> TrainQueue:
        """Returns a queue, made at its first mention."""
        return self._by_name.setdefault(name, TrainQueue(name))

    def find(self, name: str) -> TrainQueue | None:
        """Returns a queue, if it is known."""
        return self._by_name.get(name)

    def trainer_of(self, name: str) -> Attachment | None:
        """Returns the trainer at a queue's end, if there is one."""
        queue = self.find(name)
        return queue.attachment if queue is not None else None

    def make_room_for(self, name: str) -> str:
        """Makes room for a queue, if it needs any; returns why there is none, empty if there is.

        A queue that has nothing left but a version goes: the one whose version was told longest ago.
        """
        if name in self._by_name:
            return ""
        names = self._by_name.keys() | {batch.queue for batch in self._batches.values()}
        if name in names or len(names) < self.max_queues:
            return ""
        unused = [queue for queue in self if self._is_unused(queue)]
        if not unused:
            return f"{self.max_queues} queues are in use already, max_queues"
        del self._by_name[min(unused, key=lambda queue: queue.version_told_at).name]
        return ""

    def forget_if_unused(self, name: str) -> None:
        """Forgets a queue that holds nothing, has no trainer and no version; its next mention makes it anew."""
        queue = self.find(name)
        if queue is not None and queue.policy_version is None and self._is_unused(queue):
            del self._by_name[name]

    def _is_unused(self, queue: TrainQueue) -> bool:
        if queue.attachment is not None or queue.ready:
            return False
        return not any(batch.queue == queue.name for batch in self._batches.values())

    def versions_behind(self, batch: MicroBatch) -> tuple[int | None, int]:
        """Returns its queue's policy version, and how many a micro-batch is behind; 0 where one is not known."""
        queue = self.find(batch.queue)
        present = queue.policy_version if queue is not None else None
        if present is None or batch.policy_version is None:
            return present, 0
        return present, present - batch.policy_version
