"""Signals that reach a poll, and SIGTERM as a request to stop."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable

import pytest

from forebay.sockets import stopped_by_sigterm, waking_signals

WAIT_S = 20.0


def on_another_thread(function: Callable[[], None]) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive(), "the thread did not end"
    if errors:
        raise errors[0]


def test_a_signal_makes_the_descriptor_readable() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with waking_signals() as fd:
            assert select.select([fd], [], [], 0)[0] == []
            signal.raise_signal(signal.SIGUSR1)
            assert select.select([fd], [], [], WAIT_S)[0] == [fd], "the signal did not wake the poll"
            assert os.read(fd, 64) == bytes([signal.SIGUSR1])
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_more_signals_than_the_pipe_holds_are_no_error() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with waking_signals() as fd:
            os.set_blocking(fd, False)
            for _ in range(70_000):
                signal.raise_signal(signal.SIGUSR1)
            assert len(os.read(fd, 1 << 20)) <= 70_000
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_afterwards_signals_wake_whoever_they_woke_before() -> None:
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(write_end)
    try:
        with waking_signals() as fd:
            pass
        assert signal.set_wakeup_fd(before) == write_end
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    finally:
        signal.set_wakeup_fd(before)
        os.close(read_end)
        os.close(write_end)


def test_other_threads_hear_of_no_signal() -> None:
    def look() -> None:
        with waking_signals() as fd:
            assert fd == -1

    on_another_thread(look)


def test_sigterm_asks_to_stop_and_ends_nothing_by_itself() -> None:
    asked: list[str] = []
    with stopped_by_sigterm(lambda: asked.append("stop")):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert asked == ["stop", "stop"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_of_the_processs_own_stays_in_place() -> None:
    handled: list[int] = []

    def handle(number: int, _: object) -> None:
        handled.append(number)

    before = signal.signal(signal.SIGTERM, handle)
    try:
        with stopped_by_sigterm(lambda: pytest.fail("it was asked to stop")):
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is handle
    finally:
        signal.signal(signal.SIGTERM, before)
    assert handled == [signal.SIGTERM]


def test_on_another_thread_sigterm_is_left_alone() -> None:
    def look() -> None:
        with stopped_by_sigterm(lambda: None):
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    on_another_thread(look)
