"""Signals that reach a poll."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def waking_signals() -> Iterator[int]:
    """Makes every signal write a byte into a pipe, and yields its reading end for a poll; -1 on other threads.

    A Python handler alone is not enough: a signal that comes while libzmq is on its way into the kernel would
    leave the poll waiting, and the handler would run when something else happens. Only the main thread hears of
    signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield -1
        return
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    try:
        yield read_end
    finally:
        signal.set_wakeup_fd(before)
        os.close(read_end)
        os.close(write_end)


@contextlib.contextmanager
def stopped_by_sigterm(stop: Callable[[], None]) -> Iterator[None]:
    """Has SIGTERM call `stop`, on the main thread, unless the process has a handler of its own for it."""
    is_main_thread = threading.current_thread() is threading.main_thread()
    if not is_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
