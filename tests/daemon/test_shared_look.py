"""One look for all who ask within a moment."""

from __future__ import annotations

import itertools
import threading

import pytest

from forebay.daemon.shared_look import SharedLook
from forebay.wire import WaitTimeoutError

_PATIENCE_S = 60.0


def test_a_look_is_told_while_it_is_fresh_and_taken_anew_afterwards() -> None:
    now = [0.0]
    numbers = itertools.count()
    shared = SharedLook(lambda: next(numbers), 1.0, clock=lambda: now[0])
    assert (shared.take(), shared.take()) == (0, 0)
    now[0] = 1.0
    assert shared.take() == 0
    now[0] = 1.1
    assert (shared.take(), shared.take()) == (1, 1)


def test_a_look_is_as_old_as_its_beginning() -> None:
    times = iter((0.0, 1.5))
    numbers = itertools.count()
    shared = SharedLook(lambda: next(numbers), 1.0, clock=lambda: next(times))
    assert shared.take() == 0
    assert shared.take() == 1


def test_a_look_that_fails_is_tried_again_by_the_next() -> None:
    failing = iter((True, False))

    def look() -> str:
        if next(failing):
            raise WaitTimeoutError("the loop hangs")
        return "seen"

    shared = SharedLook(look, 1.0)
    with pytest.raises(WaitTimeoutError, match="the loop hangs"):
        shared.take()
    assert shared.take() == "seen"


def test_whoever_waits_for_anothers_look_waits_no_longer_than_told() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def look() -> int:
        begun.set()
        assert may_end.wait(_PATIENCE_S)
        return 1

    shared = SharedLook(look, 1.0, look_s=0.01)
    thread = threading.Thread(target=shared.take)
    thread.start()
    assert begun.wait(_PATIENCE_S)
    with pytest.raises(WaitTimeoutError, match="another's look"):
        shared.take()
    may_end.set()
    thread.join(_PATIENCE_S)
    assert shared.take() == 1
