"""One look at the daemon an interval, and what is drawn of it, until somebody has seen enough."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, Protocol

from forebay.wire import BrokenError, Status

from .frame import Rates, Shown, frame, slot_rows
from .keys import Key, KeyReader
from .terminal import Terminal
from .view import View

_OVERDUE_S: Final = 2.0
"""Behind its interval, after which an answer is missed."""
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
_MOST_BYTES: Final = 1024


class Asks(Protocol):
    """Whoever asks a daemon, such as `Conversation`."""

    def status(self) -> Awaitable[Status]:
        """Asks what the daemon holds now."""


class Watch:
    """Shows a daemon.

    Args:
        daemon: That is asked.
        terminal: That is drawn on.
        interval_s: Seconds from one look to the next.

    Attributes:
        ended_by: The signal that ended it, or 0.
    """

    def __init__(self, daemon: Asks, terminal: Terminal, interval_s: float) -> None:
        self._daemon = daemon
        self._terminal = terminal
        self._interval_s = interval_s
        self._view = View()
        self._keys = KeyReader()
        self._before: Status | None = None
        self._now: Status | None = None
        self._heard_at = self._listens_since = 0.0
        self._heard_clock = ""
        self._is_away = False
        self._changed = asyncio.Event()
        self._may_ask = asyncio.Event()
        self._may_ask.set()
        self.ended_by = 0

    async def run(self) -> None:
        """Shows it until `q` is pressed or a signal ends it.

        Raises:
            ForebayError: The daemon does not want this client any more; that it is away is only shown.
        """
        self._hear(await self._daemon.status())
        with self._signals(), self._terminal:
            looks = asyncio.create_task(self._look_again_and_again())
            looks.add_done_callback(lambda _: self._changed.set())
            try:
                while not self._view.is_over and not self.ended_by and not looks.done():
                    self._draw()
                    await self._something()
            finally:
                looks.cancel()
                await asyncio.wait([looks])
        if not looks.cancelled():
            looks.result()

    async def _something(self) -> None:
        """Waits until there is something else to show; if only that more time has passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(self._interval_s, 1.0)):
                await self._changed.wait()
        self._changed.clear()

    # The daemon.

    async def _look_again_and_again(self) -> None:
        loop = asyncio.get_running_loop()
        next_at = loop.time() + self._interval_s
        while True:
            await asyncio.sleep(max(0.0, next_at - loop.time()))
            await self._may_ask.wait()
            next_at = loop.time() + self._interval_s
            try:
                status = await self._daemon.status()
            except BrokenError:
                self._is_away = True
            else:
                # An answer that comes after the key: what is shown stands still already.
                if not self._view.is_frozen:
                    self._hear(status)
            self._changed.set()

    def _hear(self, status: Status) -> None:
        self._before, self._now = self._now, status
        self._heard_at = self._listens_since = time.monotonic()
        self._heard_clock, self._is_away = time.strftime("%H:%M:%S"), False

    # The terminal.

    def _draw(self) -> None:
        assert self._now is not None
        shown = Shown(self._now, Rates.between(self._before, self._now), self._away())
        columns, lines = self._terminal.size
        self._terminal.draw(frame(shown, self._view, columns=columns, lines=lines))

    def _away(self) -> str:
        now = time.monotonic()
        is_overdue = now - self._listens_since > self._interval_s + _OVERDUE_S
        if self._view.is_frozen or not (self._is_away or is_overdue):
            return ""
        return f"AWAY since {self._heard_clock}, {now - self._heard_at:.0f} s"

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[], None]] = {
            signal.SIGWINCH: self._changed.set,
            signal.SIGCONT: self._go_on,
            signal.SIGTSTP: self._stop,
            **{number: functools.partial(self._end, number) for number in _ENDING},
        }
        for number, handle in handlers.items():
            loop.add_signal_handler(number, handle)
        if self._terminal.keys is not None:
            loop.add_reader(self._terminal.keys, self._read_keys)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)
            if self._terminal.keys is not None:
                loop.remove_reader(self._terminal.keys)

    def _end(self, number: int) -> None:
        self.ended_by = number
        self._changed.set()

    def _stop(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGTSTP)
        self._terminal.stop_process()
        loop.add_signal_handler(signal.SIGTSTP, self._stop)
        self._changed.set()

    def _go_on(self) -> None:
        # Whoever stopped this process without a word left the terminal to others meanwhile.
        self._terminal.take()
        self._changed.set()

    def _read_keys(self) -> None:
        assert self._terminal.keys is not None
        data = os.read(self._terminal.keys, _MOST_BYTES)
        if not data:
            self._end(signal.SIGHUP)
            return
        for key in self._keys.read(data):
            self._press(key)

    def _press(self, key: Key) -> None:
        assert self._now is not None
        _, lines = self._terminal.size
        rows = slot_rows(self._now, lines)
        self._view = self._view.pressed(key, slots=len(self._now.slots), rows=rows)
        if self._view.is_frozen:
            self._may_ask.clear()
        elif not self._may_ask.is_set():
            self._listens_since = time.monotonic()
            self._may_ask.set()
        self._changed.set()
