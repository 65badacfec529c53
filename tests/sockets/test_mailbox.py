"""Events from threads and handlers: each runs once, in order, and wakes the loop."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator

import pytest

from forebay.sockets import Mailbox

WAIT_S = 20.0


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    mailbox = Mailbox()
    yield mailbox
    mailbox.close()


def is_readable(mailbox: Mailbox, timeout_s: float = 0.0) -> bool:
    return bool(select.select([mailbox.fileno()], [], [], timeout_s)[0])


def run(mailbox: Mailbox) -> None:
    for event in mailbox.take():
        event()


def test_without_events_there_is_nothing_to_take(mailbox: Mailbox) -> None:
    assert not is_readable(mailbox)
    assert list(mailbox.take()) == []


def test_events_run_in_the_order_in_which_they_were_posted(mailbox: Mailbox) -> None:
    ran: list[int] = []
    for number in range(5):
        mailbox.post(lambda number=number: ran.append(number))  # type: ignore[misc]
    run(mailbox)
    assert ran == [0, 1, 2, 3, 4]
    assert not is_readable(mailbox)
    assert list(mailbox.take()) == []


def test_an_event_wakes_a_poll_that_waits(mailbox: Mailbox) -> None:
    thread = threading.Thread(target=lambda: mailbox.post(lambda: None))
    thread.start()
    assert is_readable(mailbox, WAIT_S), "the event did not wake the poll"
    thread.join()


def test_an_event_that_posts_another_is_followed_by_that(mailbox: Mailbox) -> None:
    ran: list[str] = []

    def first() -> None:
        ran.append("first")
        mailbox.post(lambda: ran.append("second"))

    mailbox.post(first)
    run(mailbox)
    run(mailbox)
    assert ran == ["first", "second"]


def test_no_event_of_many_threads_is_lost_and_each_threads_order_is_kept(mailbox: Mailbox) -> None:
    ran: list[tuple[int, int]] = []

    def post(poster: int) -> None:
        for number in range(500):
            mailbox.post(lambda number=number: ran.append((poster, number)))  # type: ignore[misc]

    posters = [threading.Thread(target=post, args=(poster,)) for poster in range(4)]
    for thread in posters:
        thread.start()
    while len(ran) < 2000:
        assert is_readable(mailbox, WAIT_S), f"only {len(ran)} of 2000 events came"
        run(mailbox)
    for thread in posters:
        thread.join()
    for poster in range(4):
        assert [number for who, number in ran if who == poster] == list(range(500))


def test_a_signal_handler_may_post(mailbox: Mailbox) -> None:
    ran: list[str] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: mailbox.post(lambda: ran.append("handled")))
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    run(mailbox)
    assert ran == ["handled"]


def test_what_is_posted_to_a_closed_mailbox_is_never_run_and_no_error() -> None:
    mailbox = Mailbox()
    fd = mailbox.fileno()
    mailbox.close()
    mailbox.post(lambda: pytest.fail("it ran"))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
