"""What the trainer says to the daemon until it is attached, and what it makes of a refusal."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from forebay.trainer.conversation import Conversation, Phase
from forebay.wire import (
    MAX_ENTRIES,
    PROTOCOL_VERSION,
    Attach,
    FindPool,
    Goodbye,
    PoolFound,
    RefusalCode,
    Refused,
    RefusedError,
    VersionMismatchError,
    Want,
)

from .conversation_desk import (
    ATTACHED,
    RETRY_S,
    FakeQueue,
    attach,
    conversation_of,
    kinds,
    only,
    pool_found,
    refused,
)


@pytest.fixture
def queue() -> FakeQueue:
    return FakeQueue()


@pytest.fixture
def conversation(queue: FakeQueue) -> Conversation:
    return conversation_of(queue)


# --- looking ---


def test_it_begins_by_asking_where_the_pool_is(conversation: Conversation) -> None:
    assert only(conversation.look(0.0), FindPool).version == PROTOCOL_VERSION
    assert conversation.phase is Phase.LOOKING
    assert conversation.next_deadline() == RETRY_S


def test_it_asks_again_until_somebody_answers(conversation: Conversation) -> None:
    first = only(conversation.look(0.0), FindPool)
    assert conversation.tick(1.9) == []
    second = only(conversation.tick(2.0), FindPool)
    assert second.id != first.id
    assert conversation.tick(3.9) == []
    only(conversation.tick(4.0), FindPool)


def test_it_takes_a_lock_in_the_pool_before_it_attaches(conversation: Conversation, queue: FakeQueue) -> None:
    conversation.look(0.0)
    request = only(conversation.heard(pool_found(), 0.0), Attach)
    assert (request.queue, request.holder, request.version) == ("train", "holder1", PROTOCOL_VERSION)
    assert (request.held, request.on_device) == ((), ())
    assert queue.locked == Path("/pool")
    assert conversation.phase is Phase.LOOKING


def test_an_attach_without_an_answer_begins_again(conversation: Conversation, queue: FakeQueue) -> None:
    conversation.look(0.0)
    conversation.heard(pool_found(), 0.0)
    only(conversation.tick(2.0), FindPool)
    request = only(conversation.heard(pool_found(), 2.1), Attach)
    assert (request.holder, queue.locks) == ("holder1", 1)


def test_once_attached_it_tells_the_queue_and_states_the_demand(
    conversation: Conversation, queue: FakeQueue
) -> None:
    queue.credit_total, queue.wanted = 3, ("k",)
    conversation.look(0.0)
    conversation.heard(pool_found(), 0.0)
    want = only(conversation.heard(ATTACHED, 0.0), Want)
    assert (want.holder, want.credit_total, want.keys) == ("holder1", 3, ("k",))
    assert queue.told == [(Path("/pool"), False)]


def test_it_names_no_more_keys_in_a_message_than_the_daemon_reads(
    conversation: Conversation, queue: FakeQueue
) -> None:
    keys = tuple(f"k{number}" for number in range(MAX_ENTRIES + 1))
    queue.wanted = keys
    attach(conversation)
    assert only(conversation.want(again=True), Want).keys == keys[:MAX_ENTRIES]
    queue.wanted = keys[1:]
    assert only(conversation.want(), Want).keys == keys[1:], "the others in their turn"


def test_whoever_has_more_on_the_device_attaches_in_parts_and_is_attached_by_the_last(
    conversation: Conversation, queue: FakeQueue
) -> None:
    attach(conversation)
    queue.promoted = tuple((f"k{number}", "attempt") for number in range(2 * MAX_ENTRIES + 1))
    queue.held_slots = ((3, 7),)
    conversation.reconnected(1.0)
    parts = [part for part in conversation.heard(pool_found(), 1.0) if isinstance(part, Attach)]
    assert [len(part.on_device) for part in parts] == [MAX_ENTRIES, MAX_ENTRIES, 1]
    assert tuple(entry for part in parts for entry in part.on_device) == queue.promoted
    assert [part.held for part in parts] == [((3, 7),)] * 3, "else it would be lent again"
    *firsts, last = (msgspec.structs.replace(ATTACHED, id=part.id) for part in parts)
    for answer in firsts:
        assert conversation.heard(answer, 1.0) == [], "what it wants would not be counted"
        assert conversation.phase is Phase.LOOKING
    only(conversation.heard(last, 1.0), Want)
    assert len(queue.told) == 2


def test_a_last_part_that_is_lost_has_all_of_them_said_again(conversation: Conversation, queue: FakeQueue) -> None:
    queue.promoted = tuple((f"k{number}", "attempt") for number in range(MAX_ENTRIES + 1))
    conversation.look(0.0)
    first = conversation.heard(pool_found(), 0.0)[0]
    conversation.heard(msgspec.structs.replace(ATTACHED, id=first.id), 0.0)
    only(conversation.tick(RETRY_S), FindPool)
    again = conversation.heard(pool_found(), RETRY_S)
    assert kinds(again) == ["Attach", "Attach"]
    only(conversation.heard(msgspec.structs.replace(ATTACHED, id=again[1].id), RETRY_S), Want)


def test_two_answers_to_a_question_that_was_repeated_still_make_it_a_new_pool(
    conversation: Conversation, queue: FakeQueue
) -> None:
    # The daemon came late, and found both questions.
    conversation.look(0.0)
    conversation.tick(2.0)
    for _ in range(2):
        only(conversation.heard(pool_found(), 2.5), Attach)
    conversation.heard(ATTACHED, 2.5)
    assert queue.told == [(Path("/pool"), False)], "else the queue would never read a slot of it"
    conversation.heard(ATTACHED, 2.5)
    assert queue.told == [(Path("/pool"), False), (Path("/pool"), True)]


def test_two_answers_from_another_pool_make_it_forget_the_slots_of_the_first(
    conversation: Conversation, queue: FakeQueue
) -> None:
    attach(conversation)
    queue.held_slots = ((3, 7),)
    conversation.heard(Goodbye(kept=False), 10.0)
    conversation.tick(12.0)
    for _ in range(2):
        request = only(conversation.heard(pool_found("/other"), 12.5), Attach)
        assert request.held == ()
    conversation.heard(ATTACHED, 12.5)
    assert queue.told[-1] == (Path("/other"), False)


@pytest.mark.parametrize("phase", [Phase.ATTACHED, Phase.FAILED])
def test_an_answer_that_comes_late_is_not_followed(conversation: Conversation, phase: Phase) -> None:
    attach(conversation)
    if phase is Phase.FAILED:
        conversation.heard(refused(RefusalCode.BAD_REQUEST), 1.0)
    assert conversation.heard(pool_found(), 1.0) == []
    assert conversation.phase is phase


# --- being refused ---


@pytest.mark.parametrize("reply", [pool_found(version=99), refused(RefusalCode.VERSION, version=99)])
def test_another_version_ends_it_with_both_named(conversation: Conversation, reply: PoolFound | Refused) -> None:
    conversation.look(0.0)
    assert conversation.heard(reply, 0.0) == []
    assert conversation.phase is Phase.FAILED
    assert isinstance(conversation.refusal, VersionMismatchError)
    assert "99" in str(conversation.refusal)
    assert str(PROTOCOL_VERSION) in str(conversation.refusal)
    assert conversation.next_deadline() is None
    assert conversation.tick(100.0) == []


def test_a_taken_queue_is_asked_for_again_after_pauses_that_grow(conversation: Conversation) -> None:
    conversation.look(0.0)
    now, pauses = 0.0, []
    for _ in range(8):
        only(conversation.heard(pool_found(), now), Attach)
        assert conversation.heard(refused(RefusalCode.QUEUE_TAKEN), now) == []
        due = conversation.next_deadline()
        assert due is not None
        pauses.append(round(due - now, 6))
        assert conversation.tick(due - 0.001) == []
        now = due
        only(conversation.tick(now), FindPool)
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert isinstance(conversation.refusal, RefusedError)
    assert conversation.refusal.code == RefusalCode.QUEUE_TAKEN
    assert str(conversation.refusal) == "refused (queue_taken): no; stop it, or attach to another queue"


def test_the_pauses_begin_short_again_after_it_was_attached(conversation: Conversation) -> None:
    conversation.look(0.0)
    for _ in range(5):
        conversation.heard(pool_found(), 0.0)
        conversation.heard(refused(RefusalCode.QUEUE_TAKEN), 0.0)
    conversation.heard(pool_found(), 0.0)
    conversation.heard(ATTACHED, 0.0)
    conversation.heard(Goodbye(kept=True), 5.0)
    conversation.heard(pool_found(), 5.0)
    conversation.heard(refused(RefusalCode.QUEUE_TAKEN), 5.0)
    assert conversation.next_deadline() == pytest.approx(5.05)


@pytest.mark.parametrize("code", [RefusalCode.BAD_REQUEST, RefusalCode.DRAINING])
def test_any_other_refusal_ends_it(conversation: Conversation, code: RefusalCode) -> None:
    conversation.look(0.0)
    conversation.heard(pool_found(), 0.0)
    assert conversation.heard(refused(code), 0.0) == []
    assert conversation.phase is Phase.FAILED
    assert isinstance(conversation.refusal, RefusedError)
    assert conversation.refusal.code == code


def test_whoever_cannot_read_a_trainers_words_is_told_to_be_no_trainer_endpoint(
    conversation: Conversation,
) -> None:
    conversation.look(0.0)
    conversation.heard(Refused(id=0, code=RefusalCode.BAD_REQUEST, words="what is this"), 0.0)
    assert conversation.phase is Phase.FAILED
    for words in ("no trainer endpoint", "(what is this)", "FOREBAY_TRAINER_ENDPOINT"):
        assert words in str(conversation.refusal)


def test_a_request_that_was_read_and_is_wrong_is_not_blamed_on_the_endpoint(conversation: Conversation) -> None:
    conversation.look(0.0)
    conversation.heard(Refused(id=7, code=RefusalCode.BAD_REQUEST, words="no such name"), 0.0)
    assert str(conversation.refusal) == "refused (bad_request): no such name"
