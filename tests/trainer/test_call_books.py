"""Calls that come, come again, wait for each other, and are refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec
import pytest

from forebay.trainer.call_record import Address
from forebay.wire import Call, CallState, InProgress, Raised, RefusalCode, Refused, Returned

from .call_desk import CallDesk, Caller, only, payload_of, raised, refused, returned


@pytest.fixture
def desk() -> CallDesk:
    return CallDesk()


@pytest.fixture
def caller(desk: CallDesk) -> Caller:
    return Caller(desk)


# --- once ---


def test_a_call_runs_at_once_and_its_answer_has_the_id_of_its_message(desk: CallDesk, caller: Caller) -> None:
    request = caller.request()
    assert desk.call(caller.address, request) == []
    assert desk.started == [request.call]
    desk.end("step", returned(5))
    answer = only(desk.heard(caller.address), Returned)
    assert answer == msgspec.structs.replace(returned(5), id=request.id)


def test_a_repeat_joins_a_call_that_runs(desk: CallDesk, caller: Caller) -> None:
    request = caller.begin()
    for _ in range(5):
        assert only(caller.say(request), InProgress).state is CallState.RUNNING
    assert desk.started == [request.call]
    desk.end("step")
    assert len(desk.heard(caller.address)) == 1


def test_a_repeat_joins_a_call_that_waits(desk: CallDesk, caller: Caller) -> None:
    first, second = caller.begin(), caller.begin()
    for _ in range(5):
        assert only(caller.say(second), InProgress).state is CallState.QUEUED
    assert desk.started == [first.call]
    desk.end("step")
    assert desk.started == [first.call, second.call]


@pytest.mark.parametrize("answer", [returned(5), raised("why")])
def test_every_later_repeat_gets_the_recorded_answer_with_its_own_id(
    desk: CallDesk, caller: Caller, answer: Returned | Raised
) -> None:
    request = caller.begin()
    desk.end("step", answer)
    desk.heard(caller.address)
    for _ in range(5):
        again = msgspec.structs.replace(request, id=desk.new_id())
        assert desk.call(caller.address, again) == [msgspec.structs.replace(answer, id=again.id)]
    assert desk.started == [request.call]


def test_the_answer_goes_to_the_connection_that_asked_last(desk: CallDesk, caller: Caller) -> None:
    request = caller.begin()
    again = msgspec.structs.replace(request, id=desk.new_id())
    desk.call(Address(b"a new connection"), again)
    desk.heard(Address(b"a new connection"))
    desk.end("step")
    assert desk.heard(caller.address) == []
    assert only(desk.heard(Address(b"a new connection")), Returned).id == again.id


def test_what_a_repeat_says_of_itself_changes_nothing(desk: CallDesk, caller: Caller) -> None:
    first = caller.begin("update")
    other = msgspec.structs.replace(first, method="step", payload=payload_of(10))
    assert isinstance(only(caller.say(other), InProgress), InProgress)
    assert desk.memory == {}
    assert desk.end("").method == "update"


def test_two_clients_may_use_the_same_numbers(desk: CallDesk) -> None:
    one, other = Caller(desk, "one"), Caller(desk, "other")
    assert one.begin("step").call.number == other.begin("stage").call.number
    assert len(desk.started) == 2


# --- lanes ---


def test_calls_of_one_method_run_one_after_another_in_their_order(desk: CallDesk, caller: Caller) -> None:
    requests = [caller.begin() for _ in range(4)]
    for request in requests:
        assert desk.end("step").id == request.call
    assert desk.runs == {}


def test_calls_of_methods_that_share_a_lane_run_one_after_another(desk: CallDesk, caller: Caller) -> None:
    methods = ["update", "reset", "reset", "update"]
    requests = [caller.begin(method) for method in methods]
    assert [desk.end("").method for _ in requests] == methods


def test_lanes_run_beside_each_other(desk: CallDesk, caller: Caller) -> None:
    for method in ("step", "stage", "update"):
        caller.begin(method)
    assert set(desk.runs) == {"step", "stage", ""}
    desk.end("stage")
    assert set(desk.runs) == {"step", ""}


def test_a_call_that_raised_lets_the_next_one_run(desk: CallDesk, caller: Caller) -> None:
    caller.begin()
    second = caller.begin()
    desk.end("step", raised())
    assert desk.runs["step"].id == second.call


def test_a_call_is_answered_before_the_next_one_of_its_lane_runs(desk: CallDesk, caller: Caller) -> None:
    caller.begin()
    caller.begin()
    call = desk.runs.pop("step")
    desk.books.ended(call, returned(), desk.now)
    assert [type(action).__name__ for action in desk.books.take_actions()] == ["Answer", "Run"]


# --- refused ---


REFUSED: list[tuple[str, RefusalCode, Callable[[Caller], Call]]] = [
    ("other run", RefusalCode.OTHER_RUN, lambda caller: caller.request(epoch="another run")),
    ("other run, unknown", RefusalCode.OTHER_RUN, lambda caller: caller.request("nothing", epoch="another run")),
    ("unknown", RefusalCode.UNKNOWN_METHOD, lambda caller: caller.request("nothing")),
    ("unknown, payload", RefusalCode.UNKNOWN_METHOD, lambda caller: caller.request("nothing", payload_of(9))),
    ("manifest", RefusalCode.BAD_MANIFEST, lambda caller: caller.request("step", b"\xff garbage")),
    ("too large", RefusalCode.BAD_MANIFEST, lambda caller: caller.request("step", b"\x00" * 5000)),
]


@pytest.mark.parametrize(("code", "make"), [pytest.param(*rest, id=name) for name, *rest in REFUSED])
def test_a_refused_call_moves_nothing_and_is_counted(code: RefusalCode, make: Callable[[Caller], Call]) -> None:
    desk = CallDesk()
    Caller(desk, "other", Address(b"other")).begin("step", payload_of(600))
    caller = Caller(desk)
    request, before = make(caller), desk.snapshot()
    for count in (1, 2):
        answer = only(desk.call(caller.address, request), Refused)
        assert (answer.code, answer.id) == (code, request.id)
        assert desk.books.counters[f"refused_{code}"] == count
    assert desk.snapshot() == before


def test_a_refused_call_may_come_again_when_the_reason_is_gone() -> None:
    desk = CallDesk(waiting_calls=1)
    caller = Caller(desk)
    caller.begin("update")
    request = caller.request()
    assert refused(caller.say(request)) is RefusalCode.TOO_MANY_CALLS
    desk.end("")
    caller.say(request)
    assert desk.started[-1] == request.call


def test_no_more_calls_than_the_limit_wait_or_run_whoever_makes_them() -> None:
    desk = CallDesk(waiting_calls=5)
    callers = [Caller(desk, name, Address(name.encode())) for name in "abc"]
    methods = ["step", "update", "stage", "step", "update"]
    for index, method in enumerate(methods):
        callers[index % 3].begin(method)
    before = desk.snapshot()
    for caller in callers:
        assert refused(caller.say(caller.request("reset"))) is RefusalCode.TOO_MANY_CALLS
    assert desk.snapshot() == before
    desk.end("step")
    callers[0].begin("reset")
    assert len(list(desk.books.unfinished)) == 5


@pytest.mark.parametrize(
    "greedy",
    [
        [("a", Address(b"1")), ("a", Address(b"2"))],
        [("a", Address(b"1")), ("b", Address(b"1"))],
        [("a", Address(b"1", "key")), ("b", Address(b"2", "key"))],
    ],
    ids=["by its id", "by its connection", "by its key"],
)
def test_one_client_leaves_the_others_a_quarter_of_the_calls_that_may_wait(
    greedy: list[tuple[str, Address]],
) -> None:
    desk = CallDesk(waiting_calls=8)
    numbers = itertools.count(1)
    guises = [Caller(desk, *guise, numbers) for guise in greedy]
    for number in range(6):
        guises[number % 2].begin("update")
    before = desk.snapshot()
    for guise in guises:
        assert refused(guise.say(guise.request("update"))) is RefusalCode.TOO_MANY_CALLS
    assert desk.snapshot() == before
    other = Caller(desk, "another", Address(b"another", "another key" if greedy[0][1].user else ""))
    for _ in range(2):
        other.begin("update")
    assert len(list(desk.books.unfinished)) == 8


def test_a_call_that_is_refused_for_want_of_room_is_told_which_setting_and_when_to_come_again() -> None:
    desk = CallDesk(waiting_calls=2, inline_bytes=600)
    first, second, third = (Caller(desk, name, Address(name.encode())) for name in "abc")
    first.begin("update", payload_of(500))
    answer = only(second.say(second.request("step", payload_of(500))), Refused)
    assert answer.words.startswith("500 bytes beside 500 of other calls are over 600 (inline_total_bytes); call")
    second.begin("step")
    for caller in (second, third):
        answer = only(caller.say(caller.request()), Refused)
        assert answer.words == "2 calls wait or run already; call again when some are over"


def test_a_repeat_is_no_further_call_when_there_are_as_many_as_may_be() -> None:
    desk = CallDesk(waiting_calls=1)
    caller = Caller(desk)
    request = caller.begin()
    assert isinstance(only(caller.say(request), InProgress), InProgress)


def test_a_repeat_meant_for_another_run_does_not_join_this_one(desk: CallDesk, caller: Caller) -> None:
    request = caller.begin()
    before = desk.snapshot()
    assert refused(caller.say(msgspec.structs.replace(request, epoch="another"))) is RefusalCode.OTHER_RUN
    assert desk.snapshot() == before


def test_the_words_of_a_refusal_cannot_drive_a_terminal(caller: Caller) -> None:
    answer = only(caller.say(caller.request("\x1b[31mred")), Refused)
    assert "\x1b" not in answer.words


# --- the end of the worker ---


def test_draining_refuses_what_waits_and_leaves_what_runs(desk: CallDesk, caller: Caller) -> None:
    running, waiting = caller.begin(), caller.begin()
    receiving = caller.request("stage", payload_of(600))
    caller.say(receiving)
    desk.drain()
    answers = desk.heard(caller.address)
    assert [(answer.code, type(answer)) for answer in answers if isinstance(answer, Refused)] == [
        (RefusalCode.DRAINING, Refused)
    ] * 2
    assert desk.memory == {}
    assert desk.runs["step"].id == running.call
    desk.end("step")
    assert isinstance(only(desk.heard(caller.address), Returned), Returned)
    assert desk.runs == {}
    for request in (waiting, receiving):
        assert refused(caller.say(request)) is RefusalCode.DRAINING
    assert isinstance(only(caller.say(running), Returned), Returned)
    assert desk.started == [running.call]


def test_a_worker_that_drains_takes_no_call_and_moves_nothing(desk: CallDesk, caller: Caller) -> None:
    running = caller.begin()
    desk.drain()
    before = desk.snapshot()
    assert refused(caller.say(caller.request())) is RefusalCode.DRAINING
    assert refused(caller.say(caller.request("stage", payload_of(9)))) is RefusalCode.DRAINING
    assert desk.snapshot() == before
    assert isinstance(only(caller.say(running), InProgress), InProgress)


def test_draining_twice_is_as_good_as_once(desk: CallDesk, caller: Caller) -> None:
    caller.begin()
    desk.drain()
    before = desk.snapshot()
    desk.drain()
    assert desk.snapshot() == before


# --- what people see ---


def test_the_outcomes_are_counted_by_method(desk: CallDesk, caller: Caller) -> None:
    for answer in (returned(), raised(), returned()):
        request = caller.begin("update")
        desk.end("", answer)
    caller.say(request)
    assert desk.books.counters == {"update_returned": 2, "update_raised": 1, "repeats": 1}


def test_a_call_tells_where_it_is_and_since_when(desk: CallDesk, caller: Caller) -> None:
    caller.begin()
    desk.pass_time(3)
    caller.begin("step")
    caller.begin("stage", payload_of(600))
    desk.pass_time(2)
    told = [call.status(desk.now) for call in desk.books.unfinished]
    assert [(call.method, call.number, call.state, call.since_s) for call in told] == [
        ("step", 1, CallState.RUNNING, 5.0),
        ("step", 2, CallState.QUEUED, 2.0),
        ("stage", 3, CallState.RECEIVING, 2.0),
    ]
    assert [(call.received_bytes, call.expected_bytes) for call in told] == [(0, 0), (0, 0), (0, 600)]
    assert {call.client for call in told} == {"caller"}


def test_a_call_is_complete_from_the_moment_on_in_which_it_might_have_run(desk: CallDesk, caller: Caller) -> None:
    caller.begin()
    caller.begin()
    complete_at = desk.now
    desk.pass_time(60)
    desk.end("step")
    assert desk.runs["step"].complete_at == complete_at
