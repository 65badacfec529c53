"""Calls that nobody waits for any more, and what is remembered of those that are over."""

from __future__ import annotations

import pytest

from forebay.trainer.call_memory import CallMemory
from forebay.trainer.call_record import Address, CallRecord
from forebay.wire import CallId, CallState, Granted, InProgress, Raised, RefusalCode, Returned

from .call_desk import CallDesk, Caller, only, payload_of, raised, refused, returned

MIB = 1 << 20


@pytest.fixture
def desk() -> CallDesk:
    return CallDesk()


@pytest.fixture
def caller(desk: CallDesk) -> Caller:
    return Caller(desk)


# --- cancelled ---


def test_a_call_that_waits_is_cancelled_and_does_not_run(desk: CallDesk, caller: Caller) -> None:
    first, second, third = caller.begin(), caller.begin(), caller.begin()
    assert refused(caller.cancel(second)) is RefusalCode.CANCELLED
    assert refused(caller.say(second)) is RefusalCode.CANCELLED
    desk.end("step")
    desk.end("step")
    assert desk.started == [first.call, third.call]
    assert desk.runs == {}


def test_a_call_whose_payload_arrives_is_cancelled_and_its_memory_is_free(desk: CallDesk, caller: Caller) -> None:
    request = caller.request("step", payload_of(600))
    caller.say(request)
    assert refused(caller.cancel(request)) is RefusalCode.CANCELLED
    assert desk.memory == {}
    assert refused(caller.say(request)) is RefusalCode.CANCELLED
    assert (desk.started, desk.memory) == ([], {})


def test_a_call_that_runs_goes_on_when_it_is_cancelled(desk: CallDesk, caller: Caller) -> None:
    request = caller.begin()
    before = desk.snapshot()
    assert caller.cancel(request) == []
    assert desk.snapshot() == before
    assert desk.given_up == [request.call], "it may wait for a micro-batch"
    assert isinstance(only(caller.say(request), InProgress), InProgress)
    desk.end("step", returned(3))
    assert only(desk.heard(caller.address), Returned).value == returned(3).value


def test_a_call_that_is_over_stays_what_it_was_when_it_is_cancelled(desk: CallDesk, caller: Caller) -> None:
    request = caller.begin()
    desk.end("step", returned(3))
    desk.heard(caller.address)
    before = desk.snapshot()
    assert caller.cancel(request) == []
    assert desk.snapshot() == before
    assert only(caller.say(request), Returned).value == returned(3).value


@pytest.mark.parametrize("payload", [b"", payload_of(600)])
def test_a_call_that_comes_after_its_cancel_is_refused_and_does_not_run(
    desk: CallDesk, caller: Caller, payload: bytes
) -> None:
    request = caller.request("step", payload)
    caller.cancel(request)
    for _ in range(3):
        assert refused(caller.say(request)) is RefusalCode.CANCELLED
    assert (desk.started, desk.memory, list(desk.books.unfinished)) == ([], {}, [])


def test_a_second_cancel_changes_nothing(desk: CallDesk, caller: Caller) -> None:
    caller.begin()
    request = caller.begin()
    caller.cancel(request)
    before = desk.snapshot()
    assert caller.cancel(request) == []
    assert desk.snapshot() == before


def test_a_cancel_meant_for_another_run_changes_nothing(desk: CallDesk, caller: Caller) -> None:
    running, waiting = caller.begin(), caller.begin()
    before = desk.snapshot()
    for request in (running, waiting, caller.request()):
        assert desk.cancel(caller.address, request.call, "another run") == []
    assert desk.snapshot() == before


def test_a_cancel_of_one_call_touches_no_other(desk: CallDesk, caller: Caller) -> None:
    other = Caller(desk, "other", Address(b"other"))
    requests = [caller.begin(), caller.begin(), other.begin()]
    caller.cancel(requests[1])
    assert [call.id for call in desk.books.unfinished] == [requests[0].call, requests[2].call]
    desk.end("step")
    assert desk.runs["step"].id == requests[2].call


# --- remembered ---


def test_as_many_answers_are_kept_as_the_limit_says() -> None:
    desk = CallDesk(remembered_calls=3)
    caller = Caller(desk)
    requests = []
    for number in range(5):
        requests.append(caller.begin())
        desk.end("step", returned(number))
    desk.heard(caller.address)
    for request in requests[:2]:
        before = desk.snapshot()
        assert refused(caller.say(request)) is RefusalCode.FORGOTTEN
        assert desk.snapshot() == before
    for number, request in enumerate(requests[2:], 2):
        assert only(caller.say(request), Returned).value == returned(number).value
    assert len(desk.started) == 5


@pytest.mark.parametrize("large", [returned(0, 20 * MIB), raised("x" * 20 * MIB)])
def test_answers_are_forgotten_by_their_bytes_as_well(
    desk: CallDesk, caller: Caller, large: Returned | Raised
) -> None:
    requests = []
    for _ in range(5):
        requests.append(caller.begin())
        desk.end("step", large)
    desk.heard(caller.address)
    told = [only(caller.say(request), object) for request in requests]  # type: ignore[type-var]
    assert [isinstance(message, type(large)) for message in told] == [False, False, True, True, True]


def test_the_last_answer_is_kept_however_large_it_is(desk: CallDesk, caller: Caller) -> None:
    first, second = caller.begin(), caller.begin()
    desk.end("step")
    desk.end("step", returned(2, 65 * MIB))
    desk.heard(caller.address)
    assert isinstance(only(caller.say(second), Returned), Returned)
    assert refused(caller.say(first)) is RefusalCode.FORGOTTEN
    caller.begin()
    desk.end("step")
    desk.heard(caller.address)
    assert refused(caller.say(second)) is RefusalCode.FORGOTTEN


def test_what_is_not_over_is_never_forgotten() -> None:
    desk = CallDesk(remembered_calls=1)
    caller = Caller(desk)
    running, waiting = caller.begin(), caller.begin()
    receiving = caller.request("stage", payload_of(600))
    caller.say(receiving)
    for _ in range(10):
        caller.begin("update")
        desk.end("")
    desk.heard(caller.address)
    assert only(caller.say(running), InProgress).state is CallState.RUNNING
    assert only(caller.say(waiting), InProgress).state is CallState.QUEUED
    assert isinstance(only(caller.say(receiving), Granted), Granted)


def test_a_call_that_never_came_is_refused_once_later_ones_of_its_client_are_forgotten() -> None:
    desk = CallDesk(remembered_calls=1)
    caller = Caller(desk)
    late = caller.request()
    for _ in range(3):
        caller.begin("update")
        desk.end("")
    desk.heard(caller.address)
    before = desk.snapshot()
    assert refused(caller.say(late)) is RefusalCode.FORGOTTEN
    assert caller.cancel(late) == []
    assert desk.snapshot() == before


def test_what_one_client_has_had_forgotten_concerns_no_other() -> None:
    desk = CallDesk(remembered_calls=1)
    caller, other = Caller(desk), Caller(desk, "other", Address(b"other"))
    for _ in range(5):
        caller.begin("update")
        desk.end("")
    assert other.begin().call in desk.started


def test_cancelled_calls_are_forgotten_like_all_others() -> None:
    desk = CallDesk(remembered_calls=2)
    caller = Caller(desk)
    requests = [caller.request() for _ in range(100)]
    for request in requests:
        caller.cancel(request)
    desk.heard(caller.address)
    assert len(desk.books._over._calls) == 2
    assert refused(caller.say(requests[0])) is RefusalCode.FORGOTTEN
    assert refused(caller.say(requests[-1])) is RefusalCode.CANCELLED
    assert desk.started == []


def test_the_numbers_of_very_many_clients_take_bounded_memory() -> None:
    memory = CallMemory(1)
    for number in range(10_050):
        call = CallRecord(CallId(f"client {number}", 7), "m", "", Address(b""), 0, 0.0)
        call.answer = returned()
        memory.add(call)
    assert len(memory._highest) == 10_000
    assert memory.is_forgotten(CallId("client 10000", 7))
    assert not memory.is_forgotten(CallId("client 10000", 8))
    assert repr(memory).startswith("CallMemory(1 calls, ")
