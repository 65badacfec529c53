"""How often one event may be written to a log. No clock: whoever asks says what time it is."""

from __future__ import annotations

import dataclasses
import math


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
        # Asked in each turn of a loop, so not found anew each time.
        self._first_end = math.inf
        self._next_deadline: float | None = None

    def take_left_out(self, now: float) -> list[tuple[str, int]]:
        """Returns event and count of what was left out in windows that are over, and forgets those windows."""
        if now < self._first_end:
            return []
        over = [name for name, window in self._windows.items() if now >= self._end_of(window)]
        counts = [(name, self._windows.pop(name).left_out) for name in over]
        self._note_ends()
        return [(name, count) for name, count in counts if count]

    def admits(self, event: str, now: float) -> bool:
        """Tells whether an event of that name is written now; after `take_left_out` of the same moment."""
        window = self._windows.get(event)
        if window is None:
            window = self._windows[event] = _Window(now)
            if len(self._windows) > self._max_events:
                del self._windows[next(iter(self._windows))]
            self._note_ends()
        if window.written < self._count:
            window.written += 1
            return True
        window.left_out += 1
        if window.left_out == 1:
            self._note_ends()
        return False

    def next_deadline(self) -> float | None:
        """Returns the monotonic second at which `take_left_out` has something to tell; None if never."""
        return self._next_deadline

    def _note_ends(self) -> None:
        windows = self._windows.values()
        self._first_end = min(map(self._end_of, windows), default=math.inf)
        self._next_deadline = min((self._end_of(window) for window in windows if window.left_out), default=None)

    def _end_of(self, window: _Window) -> float:
        return window.began + self._window_s
