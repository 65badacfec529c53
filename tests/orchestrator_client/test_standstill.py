"""When a sending is to end because nothing of it arrives: without a socket, on a clock that is told."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.orchestrator_client.standstill import Standstill, Why

RETRY_S, SILENCE_S = 2.0, 30.0
REFUSED = Why("nobody listens there", "set it", is_certain=True)
SWALLOWED = Why("packets to it are not answered", "see the firewall")
MUTE = Why("it says nothing", "see whether it lives", may_be_slow=True)
NOTHING = Why("", "look")


class Sending:
    """A sending whose answers come every `RETRY_S`, and what looks at its data endpoint find."""

    def __init__(self, why: Why = NOTHING, **state: bool) -> None:
        self.still = Standstill(RETRY_S, SILENCE_S)
        self.why = why
        self.state: dict[str, Any] = {"is_sent": True, "has_connected": True} | state
        self.now = 1000.0
        self.looks: list[float] = []
        self.hear(0)

    def hear(self, received_bytes: int) -> bool:
        """Hears an answer; returns whether that ends it."""
        if not self.still.heard(received_bytes, self.now, **self.state):
            return False
        self.looks.append(self.still.seconds)
        return self.still.is_over(self.why)

    def ends_within(self, seconds: float) -> float | None:
        """Lets time pass without a byte that arrives; returns when that ended it."""
        since = self.now
        while self.now < since + seconds:
            self.now += RETRY_S
            if self.hear(self.still.received_bytes):
                return self.now - since
        return None


def test_a_connection_that_never_came_about_for_a_certain_reason_ends_it_in_a_few_seconds() -> None:
    assert Sending(REFUSED, has_connected=False).ends_within(100) == 6


def test_one_that_had_come_about_has_time_to_come_back() -> None:
    sending = Sending(REFUSED)
    assert sending.ends_within(100) == SILENCE_S
    assert sending.looks == [SILENCE_S], "no look is for nothing"


@pytest.mark.parametrize("has_connected", [False, True])
def test_what_may_come_right_by_waiting_is_waited_for(has_connected: bool) -> None:
    assert Sending(SWALLOWED, has_connected=has_connected).ends_within(100) == SILENCE_S


@pytest.mark.parametrize("has_connected", [False, True])
def test_where_nothing_is_wrong_that_can_be_seen_it_has_twice_the_time(has_connected: bool) -> None:
    assert Sending(has_connected=has_connected).ends_within(100) == 2 * SILENCE_S


def test_who_says_nothing_is_slow_perhaps_if_there_was_a_connection() -> None:
    assert Sending(MUTE, has_connected=False).ends_within(100) == SILENCE_S
    assert Sending(MUTE).ends_within(100) == 2 * SILENCE_S


@pytest.mark.parametrize("why", [REFUSED, SWALLOWED, MUTE, NOTHING])
def test_a_slow_link_never_ends_it(why: Why) -> None:
    sending = Sending(why)
    for received_bytes in range(1, 20):
        assert sending.ends_within(SILENCE_S - RETRY_S) is None
        sending.now += RETRY_S
        assert not sending.hear(received_bytes)
    assert not sending.looks
    assert sending.ends_within(100) is not None, "the last one was not the end of it"


def test_what_a_turn_or_a_rate_keeps_back_never_ends_it() -> None:
    sending = Sending(REFUSED, is_sent=False, has_connected=False)
    assert sending.ends_within(3600) is None
    assert not sending.looks
    sending.state["is_sent"] = True
    assert sending.ends_within(100) == 6


def test_time_without_answers_does_not_count() -> None:
    sending = Sending(SWALLOWED)
    for _ in range(6):
        sending.now += SILENCE_S  # the link to the server was cut as well, or this process stood still
        assert not sending.hear(0)
    assert sending.still.seconds == 6 * 2 * RETRY_S


def test_answers_that_were_held_up_and_come_all_at_once_do_not_count() -> None:
    sending = Sending(SWALLOWED)
    sending.now += SILENCE_S
    assert not any(sending.hear(0) for _ in range(100))


def test_bytes_of_another_grant_count_from_its_beginning() -> None:
    sending = Sending(SWALLOWED)
    assert not sending.hear(500)
    assert sending.ends_within(20) is None
    assert not sending.hear(0)  # the lease had run out
    assert sending.ends_within(4) is None
    assert not sending.hear(100), "it grows"
    assert sending.ends_within(SILENCE_S - RETRY_S) is None


def test_with_little_patience_it_is_looked_at_no_later_than_that() -> None:
    still = Standstill(0.125, 0.25)
    heard = [still.heard(0, tick / 8, is_sent=True, has_connected=False) for tick in range(6)]
    assert heard == [False, False, True, False, True, False]
