"""Payloads of calls: how they are granted, filled, given up, and how much memory they may take."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from forebay.wire import (
    Call,
    CallState,
    ChunkFault,
    Granted,
    InProgress,
    RefusalCode,
    Refused,
    Returned,
)

from .call_desk import CallDesk, Caller, chunk_headers, manifest_of, only, payload_of, refused, returned

NBYTES = 1000
SPANS = 4
LEASE_S = 30.0


@pytest.fixture
def desk() -> CallDesk:
    return CallDesk(receive_lease_s=LEASE_S)


@pytest.fixture
def caller(desk: CallDesk) -> Caller:
    return Caller(desk)


def granted(caller: Caller, request: Call) -> Granted:
    return only(caller.say(request), Granted)


def arrive(caller: Caller, request: Call, nbytes: int = NBYTES) -> list[Any]:
    """Has all of a payload arrive; returns what the caller hears of it."""
    for header in chunk_headers(granted(caller, request), nbytes):
        assert caller.desk.chunk(header) is None
    return caller.desk.heard(caller.address)


# --- filling ---


def test_a_payload_is_granted_once_there_is_memory_for_it(desk: CallDesk, caller: Caller) -> None:
    request = caller.request("step", payload_of(NBYTES))
    grant = granted(caller, request)
    assert (grant.missing, grant.received_bytes, grant.chunk_bytes) == (((0, SPANS),), 0, 256)
    assert grant.attempt == "caller 1"
    assert list(desk.memory.values()) == [NBYTES]
    assert desk.started == []


def test_a_call_runs_when_all_of_its_payload_has_arrived_and_its_caller_hears_that(
    desk: CallDesk, caller: Caller
) -> None:
    request = caller.request("step", payload_of(NBYTES))
    headers = chunk_headers(granted(caller, request), NBYTES)
    for header in reversed(headers[1:]):
        assert desk.chunk(header) is None
        assert desk.heard(caller.address) == []
        assert desk.started == []
    assert desk.chunk(headers[0]) is None
    assert only(desk.heard(caller.address), InProgress).state is CallState.RUNNING
    assert desk.started == [request.call]
    assert list(desk.memory.values()) == [NBYTES], "the method reads it"
    desk.end("step")
    assert desk.memory == {}


def test_a_payload_that_is_complete_behind_another_call_waits(caller: Caller) -> None:
    caller.begin("step")
    [told] = arrive(caller, caller.request("step", payload_of(NBYTES)))
    assert told.state is CallState.QUEUED


def test_calls_of_a_lane_run_in_the_order_in_which_they_are_complete(desk: CallDesk, caller: Caller) -> None:
    first = caller.request("step", payload_of(NBYTES))
    headers = chunk_headers(granted(caller, first), NBYTES)
    second, third = caller.request("step", payload_of(NBYTES)), caller.request("step")
    arrive(caller, second)
    caller.say(third)
    for header in headers:
        desk.chunk(header)
    for request in (second, third, first):
        assert desk.end("step").id == request.call


def test_a_repeat_while_a_payload_arrives_is_granted_what_is_missing(desk: CallDesk, caller: Caller) -> None:
    request = caller.request("step", payload_of(NBYTES))
    first = granted(caller, request)
    headers = chunk_headers(first, NBYTES)
    desk.chunk(headers[1])
    again = granted(caller, request)
    assert again.missing == ((0, 1), (2, 2))
    assert again.received_bytes == 256
    assert (again.slot, again.generation, again.token) == (first.slot, first.generation, first.token)


def test_a_grant_lists_no_more_runs_than_a_message_should_hold(
    desk: CallDesk, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.wire.arrivals._MAX_RUNS", 2)
    request = caller.request("step", payload_of(7 * 256))
    headers = chunk_headers(granted(caller, request), 7 * 256)
    for header in headers[1::2]:
        desk.chunk(header)
    assert granted(caller, request).missing == ((0, 1), (2, 1))
    for header in headers[::2]:
        desk.chunk(header)
    assert desk.started == [request.call]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"token": 0}, ChunkFault.NOT_GRANTED),
        ({"generation": 1}, ChunkFault.NOT_GRANTED),
        ({"slot": 4711}, ChunkFault.NOT_GRANTED),
        ({"span": SPANS}, ChunkFault.WRONG_SPAN),
        ({"offset": 1}, ChunkFault.WRONG_SPAN),
        ({"length": 255}, ChunkFault.WRONG_SPAN),
    ],
)
def test_a_chunk_that_belongs_nowhere_moves_nothing(
    desk: CallDesk, caller: Caller, change: dict[str, int], fault: ChunkFault
) -> None:
    headers = chunk_headers(granted(caller, caller.request("step", payload_of(NBYTES))), NBYTES)
    before = desk.snapshot()
    assert desk.chunk(dataclasses.replace(headers[0], **change)) is fault
    assert desk.snapshot() == before
    assert desk.chunk(headers[0]) is None
    assert desk.chunk(headers[0]) is ChunkFault.REPEATED


def test_chunks_of_a_call_that_runs_or_is_over_belong_nowhere(desk: CallDesk, caller: Caller) -> None:
    request = caller.request("step", payload_of(NBYTES))
    headers = chunk_headers(granted(caller, request), NBYTES)
    for header in headers:
        desk.chunk(header)
    assert {desk.chunk(header) for header in headers} == {ChunkFault.NOT_GRANTED}
    desk.end("step")
    assert {desk.chunk(header) for header in headers} == {ChunkFault.NOT_GRANTED}


def test_no_two_payloads_have_the_same_number_and_token(caller: Caller) -> None:
    grants = [granted(caller, caller.request("step", payload_of(NBYTES))) for _ in range(8)]
    assert len({grant.slot for grant in grants}) == len({grant.token for grant in grants}) == 8


@pytest.mark.parametrize(
    "payload", [{}, {"static": (1, "two")}, {"x": np.zeros((0, 4), np.float32)}, 7, [np.zeros(0, np.int8)]]
)
def test_a_payload_without_bytes_is_complete_at_once(desk: CallDesk, caller: Caller, payload: Any) -> None:
    request = caller.request("step", manifest_of(payload))
    assert only(caller.say(request), InProgress).state is CallState.RUNNING
    assert desk.started == [request.call]
    assert list(desk.memory.values()) == [0]
    desk.end("step")
    assert desk.memory == {}


# --- memory ---


def test_the_bound_counts_every_payload_of_a_call_that_is_not_over() -> None:
    desk = CallDesk(inline_bytes=2 * NBYTES)
    caller = Caller(desk)
    arrive(caller, caller.request("step", payload_of(NBYTES)))  # runs
    arrive(caller, caller.request("step", payload_of(NBYTES)))  # waits
    before = desk.snapshot()
    too_much = caller.request("stage", payload_of(1))
    answer = only(caller.say(too_much), Refused)
    assert answer.code is RefusalCode.INLINE_FULL
    for number in ("1 bytes", "2000 of other calls"):
        assert number in answer.words
    assert desk.snapshot() == before
    desk.end("step")
    desk.heard(caller.address)
    assert isinstance(granted(caller, too_much), Granted)


def test_the_bound_counts_a_payload_that_is_on_its_way() -> None:
    desk = CallDesk(inline_bytes=NBYTES)
    caller = Caller(desk)
    first = caller.request("step", payload_of(NBYTES))
    granted(caller, first)
    assert refused(caller.say(caller.request("step", payload_of(1)))) is RefusalCode.INLINE_FULL
    caller.cancel(first)
    desk.heard(caller.address)
    granted(caller, caller.request("step", payload_of(NBYTES)))


def test_a_payload_that_is_larger_than_one_may_be_is_refused_whatever_is_free(
    desk: CallDesk, caller: Caller
) -> None:
    limit = desk.limits.limits.max_micro_batch_bytes
    encoded = payload_of(limit)
    assert isinstance(granted(caller, caller.request("step", encoded)), Granted)
    larger = encoded.replace((limit).to_bytes(4, "big"), (limit + 1).to_bytes(4, "big"))
    assert larger != encoded
    before = desk.snapshot()
    assert refused(caller.say(caller.request("step", larger))) is RefusalCode.BAD_MANIFEST
    assert desk.snapshot() == before


def test_a_host_without_memory_refuses_the_call_and_its_repeats(desk: CallDesk, caller: Caller) -> None:
    desk.has_memory = False
    request = caller.request("step", payload_of(NBYTES))
    for _ in range(3):
        assert refused(caller.say(request)) is RefusalCode.INLINE_FULL
    assert (desk.memory, desk.started, list(desk.books.unfinished)) == ({}, [], [])


# --- silence ---


def test_silence_frees_the_memory_and_a_later_repeat_begins_anew(desk: CallDesk, caller: Caller) -> None:
    request = caller.request("step", payload_of(NBYTES))
    first = granted(caller, request)
    headers = chunk_headers(first, NBYTES)
    desk.chunk(headers[0])
    desk.pass_time(LEASE_S - 1)
    assert len(desk.memory) == 1
    desk.pass_time(1)
    assert desk.memory == {}
    assert list(desk.books.unfinished) == []
    assert desk.books.counters["receive_expired"] == 1
    assert desk.heard(caller.address) == []
    assert desk.chunk(headers[1]) is ChunkFault.NOT_GRANTED
    second = granted(caller, request)
    assert second.missing == ((0, SPANS),)
    assert second.token != first.token
    for header in chunk_headers(second, NBYTES):
        assert desk.chunk(header) is None
    assert desk.started == [request.call]


@pytest.mark.parametrize("sign_of_life", ["chunk", "repeat"])
def test_a_chunk_or_a_repeat_ends_the_silence(desk: CallDesk, caller: Caller, sign_of_life: str) -> None:
    request = caller.request("step", payload_of(NBYTES))
    headers = chunk_headers(granted(caller, request), NBYTES)
    for header in headers[:3]:
        desk.pass_time(LEASE_S - 1)
        if sign_of_life == "chunk":
            assert desk.chunk(header) is None
        else:
            granted(caller, request)
    assert len(desk.memory) == 1
    assert "receive_expired" not in desk.books.counters, "it did not begin anew"


def test_a_chunk_that_does_not_count_does_not_end_the_silence(desk: CallDesk, caller: Caller) -> None:
    headers = chunk_headers(granted(caller, caller.request("step", payload_of(NBYTES))), NBYTES)
    desk.chunk(headers[0])
    desk.pass_time(LEASE_S - 1)
    assert desk.chunk(headers[0]) is ChunkFault.REPEATED
    assert desk.chunk(dataclasses.replace(headers[1], token=1)) is ChunkFault.NOT_GRANTED
    desk.pass_time(1)
    assert desk.memory == {}


def test_a_call_that_is_complete_waits_as_long_as_it_must(desk: CallDesk, caller: Caller) -> None:
    caller.begin("step")
    arrive(caller, caller.request("step", payload_of(NBYTES)))
    assert desk.books.next_deadline() is None
    desk.pass_time(1_000_000)
    desk.end("step")
    desk.end("step")
    assert [type(message) for message in desk.heard(caller.address)] == [Returned, Returned]


def test_only_what_is_silent_is_given_up(desk: CallDesk, caller: Caller) -> None:
    silent = caller.request("step", payload_of(NBYTES))
    granted(caller, silent)
    desk.pass_time(LEASE_S / 2)
    granted(caller, caller.request("step", payload_of(NBYTES)))
    caller.begin("update")
    desk.pass_time(LEASE_S / 2)
    assert [call.state for call in desk.books.unfinished] == [CallState.RECEIVING, CallState.RUNNING]
    assert silent.call not in {call.id for call in desk.books.unfinished}


def test_a_call_whose_payload_did_not_arrive_may_not_be_answered_by_what_came_before(
    desk: CallDesk, caller: Caller
) -> None:
    request = caller.request("step", payload_of(NBYTES))
    granted(caller, request)
    desk.pass_time(LEASE_S)
    arrive(caller, request)
    desk.end("step", returned(9))
    assert only(desk.heard(caller.address), Returned).value == returned(9).value
