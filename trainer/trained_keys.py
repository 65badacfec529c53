"""Which keys a worker has trained: none is trained twice, whoever asks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from forebay.wire import UsageError, printable


class AlreadyTrainedError(UsageError):
    """A step was asked for with a key that this worker has trained, or trains now; nothing has changed."""


class TrainedKeys:
    """The keys of a worker's steps.

    Args:
        remembered: How many are remembered.

    Attributes:
        lock: Held while something depends on a key not being trained meanwhile.
    """

    def __init__(self, remembered: int) -> None:
        self.lock = threading.RLock()
        self._remembered = remembered
        self._keys: dict[str, None] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    @contextlib.contextmanager
    def training(self, key: str | None) -> Iterator[Callable[[str], None]]:
        """Wraps a step; if that fails its key may come again.

        Args:
            key: Of the step; None if that is known only when it has its micro-batch.

        Yields:
            What claims the key of the micro-batch before that is trained.

        Raises:
            AlreadyTrainedError: The key was trained, or is being trained.
        """
        claimed: set[str] = set()

        def claim(key: str) -> None:
            with self.lock:
                if key in claimed or not key:
                    return
                self._add(key)
                claimed.add(key)

        if key is not None:
            claim(key)
        try:
            yield claim
        except BaseException:
            with self.lock:
                for failed in claimed:
                    self._keys.pop(failed, None)
            raise

    def _add(self, key: str) -> None:
        if key in self._keys:
            raise AlreadyTrainedError(
                f"micro-batch {printable(key)!r} was trained by this worker already, or is being trained",
                remedy="a key is trained once; use a new key for a new micro-batch",
            )
        self._keys[key] = None
        while len(self._keys) > self._remembered:
            del self._keys[next(iter(self._keys))]
