"""How often one event may be written to a log. No clock: whoever asks says what time it is."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(slots=True)
class _Window:
    began: float
    written: int = 0
    left_out: int = 0


class LogLimit:
    """Lets the first few of each event through in a window of time, and counts the rest.

    A peer can cause as many events as it likes; the log must not grow by each. Counters stay exact: they are kept
    elsewhere.

    Args:
        count: Of one event that are written in a window.
        window_s: Seconds of a window; it begins with its first event.
        max_events: Names that are known at once; the oldest is forgotten first.
    """

    def __init__(self, count: int = 20, window_s: float = 10.0, max_events: int = 256) -> None:
        self._count = count
        self._window_s = window_s
        self._max_events = max_events
        self._windows: dict[str, _Window] = {}

    def take_left_out(self, now: float) -> list[tuple[str, int]]:
        """Returns event and count of what was left out in windows that are over, and forgets those windows."""
        over = [name for name, window in self._windows.items() if now >= window.began + self._window_s]
        counts = [(name, self._windows.pop(name).left_out) for name in over]
        return [(name, count) for name, count in counts if count]

    def admits(self, event: str, now: float) -> bool:
        """Tells whether an event of that name is written now; after `take_left_out` of the same moment."""
        window = self._windows.setdefault(event, _Window(now))
        if len(self._windows) > self._max_events:
            del self._windows[next(iter(self._windows))]
        if window.written < self._count:
            window.written += 1
            return True
        window.left_out += 1
        return False

    def next_deadline(self) -> float | None:
        """Returns the monotonic second at which `take_left_out` has something to tell; None if never."""
        ends = (window.began + self._window_s for window in self._windows.values() if window.left_out)
        return min(ends, default=None)
