"""What the trainer says to the daemon once it is attached, and when it says it again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from forebay.trainer.conversation import Conversation, Phase
from forebay.trainer.conversation_words import told
from forebay.wire import (
    Attach,
    Detach,
    Done,
    FindPool,
    Finished,
    Goodbye,
    KeyGone,
    Lend,
    MicroBatchState,
    Promoted,
    RefusalCode,
    TrainerRequest,
    Want,
)

from .conversation_desk import (
    ATTACHED,
    FINISHED,
    FINISHED_IN_SLOT,
    PROMOTED,
    RETRY_S,
    FakeQueue,
    attach,
    conversation_of,
    kinds,
    only,
    pool_found,
    refused,
)

LEND = Lend(slot=3, generation=7, key="a", file_bytes=4096, on_credit=True)


@pytest.fixture
def queue() -> FakeQueue:
    return FakeQueue()


@pytest.fixture
def conversation(queue: FakeQueue) -> Conversation:
    return conversation_of(queue)


def is_settled(conversation: Conversation) -> bool:
    return conversation.is_settled


# --- a daemon that does not know this trainer ---


def test_a_daemon_that_does_not_know_it_is_told_what_it_holds(
    conversation: Conversation, queue: FakeQueue
) -> None:
    attach(conversation)
    queue.held_slots, queue.promoted = ((3, 7), (1, 2)), (("b", "attempt"),)
    only(conversation.heard(refused(RefusalCode.NOT_ATTACHED), 10.0), FindPool)
    assert conversation.phase is Phase.LOOKING
    request = only(conversation.heard(pool_found(), 10.0), Attach)
    assert (request.holder, request.held) == ("holder1", ((3, 7), (1, 2)))
    assert request.on_device == (("b", "attempt"),)
    conversation.heard(ATTACHED, 10.0)
    assert queue.told[-1] == (Path("/pool"), True)


def test_several_such_refusals_begin_it_once(conversation: Conversation) -> None:
    attach(conversation)
    only(conversation.heard(refused(RefusalCode.NOT_ATTACHED), 10.0), FindPool)
    for _ in range(3):
        assert conversation.heard(refused(RefusalCode.NOT_ATTACHED), 10.0) == []


def test_a_slot_whose_release_is_not_confirmed_counts_as_held(
    conversation: Conversation, queue: FakeQueue
) -> None:
    attach(conversation)
    queue.held_slots = ((1, 2),)
    for report in (PROMOTED, FINISHED, FINISHED_IN_SLOT):
        conversation.report(report)
    conversation.heard(Goodbye(kept=True), 10.0)
    request = only(conversation.heard(pool_found(), 10.0), Attach)
    assert sorted(request.held) == [(1, 2), (3, 7), (4, 9)]


def test_a_goodbye_makes_it_look_for_the_next_daemon_at_once(conversation: Conversation) -> None:
    attach(conversation)
    for kept in (True, False):
        only(conversation.heard(Goodbye(kept=kept), 10.0), FindPool)
        assert conversation.phase is Phase.LOOKING
        assert conversation.next_deadline() == 10.0 + RETRY_S


def test_a_new_connection_makes_it_attach_anew(conversation: Conversation, queue: FakeQueue) -> None:
    attach(conversation)
    queue.held_slots = ((3, 7),)
    only(conversation.reconnected(10.0), FindPool)
    assert conversation.phase is Phase.LOOKING
    assert only(conversation.heard(pool_found(), 10.0), Attach).held == ((3, 7),)
    conversation.heard(ATTACHED, 10.0)
    assert queue.told[-1] == (Path("/pool"), True)


def test_a_new_connection_does_not_wake_a_conversation_that_failed(conversation: Conversation) -> None:
    conversation.look(0.0)
    conversation.heard(refused(RefusalCode.VERSION, version=99), 0.0)
    assert conversation.reconnected(10.0) == []
    assert conversation.phase is Phase.FAILED


# --- reports ---


def test_a_report_is_said_at_once_and_again_until_it_is_confirmed(conversation: Conversation) -> None:
    attach(conversation)
    said = only(conversation.report(PROMOTED), Promoted)
    assert (said.holder, said.slot, said.generation, said.key) == ("holder1", 3, 7, "a")
    assert not is_settled(conversation)
    for now in (2.0, 4.0, 6.0):
        assert conversation.tick(now - 0.1) == []
        assert conversation.tick(now)[0] == said
    assert conversation.heard(Done(id=said.id + 1), 6.5) == []
    assert conversation.unconfirmed == (said,)
    assert not is_settled(conversation)
    assert conversation.heard(Done(id=said.id), 7.0) == []
    assert is_settled(conversation)
    assert conversation.heard(Done(id=said.id), 7.0) == [], "a repeat's confirmation"
    assert kinds(conversation.tick(8.0)) == ["Want"]


def test_a_report_after_a_long_quiet_is_not_said_twice_at_once(
    conversation: Conversation, queue: FakeQueue
) -> None:
    attach(conversation)
    queue.is_unmet = False
    assert conversation.tick(1.0) == []
    assert conversation.next_deadline() is None
    said = only(conversation.report(PROMOTED), Promoted)
    assert conversation.tick(100.0) == []
    assert conversation.next_deadline() == 102.0
    assert conversation.tick(101.9) == []
    assert conversation.tick(102.0)[0] == said


def test_reports_keep_their_order_and_have_ids_of_their_own(conversation: Conversation) -> None:
    attach(conversation)
    said = [only(conversation.report(report), type(report)) for report in (PROMOTED, FINISHED, FINISHED_IN_SLOT)]
    assert len({report.id for report in said}) == 3
    assert conversation.tick(2.0)[:3] == said
    conversation.heard(Done(id=said[1].id), 2.1)
    assert conversation.tick(4.0)[:2] == [said[0], said[2]]


def test_a_report_that_is_made_while_looking_is_said_once_attached(conversation: Conversation) -> None:
    conversation.look(0.0)
    assert conversation.report(FINISHED) == []
    conversation.heard(pool_found(), 0.0)
    finished, want = conversation.heard(ATTACHED, 0.0)
    assert isinstance(finished, Finished)
    assert (finished.holder, finished.key) == ("holder1", "b")
    assert isinstance(want, Want)


def test_after_a_restart_on_the_same_pool_every_report_is_said_again(conversation: Conversation) -> None:
    attach(conversation)
    for report in (PROMOTED, FINISHED_IN_SLOT, Detach(holder="")):
        conversation.report(report)
    conversation.heard(Goodbye(kept=True), 10.0)
    conversation.heard(pool_found(), 10.0)
    assert kinds(conversation.heard(ATTACHED, 10.0)) == ["Promoted", "Finished", "Detach", "Want"]


def test_another_pool_drops_what_was_to_be_said_about_slots_but_not_about_keys(
    conversation: Conversation, queue: FakeQueue
) -> None:
    attach(conversation)
    queue.held_slots, queue.promoted = ((3, 7),), (("b", "attempt"),)
    for report in (PROMOTED, FINISHED_IN_SLOT, FINISHED):
        conversation.report(report)
    conversation.heard(Goodbye(kept=False), 10.0)
    request = only(conversation.heard(pool_found("/other"), 10.0), Attach)
    assert (request.holder, request.held, request.on_device) == ("holder2", (), (("b", "attempt"),))
    *reports, _ = conversation.heard(ATTACHED, 10.0)
    assert queue.told[-1] == (Path("/other"), False)
    assert [(report.key, report.slot, report.reason) for report in reports if isinstance(report, Finished)] == [
        ("c", -1, "it did not fit"),
        ("b", -1, ""),
    ]
    assert len(reports) == 2
    assert {report.holder for report in reports if isinstance(report, Finished)} == {"holder2"}


def test_another_pool_confirms_a_detach_that_had_nobody_left_to_hear_it(conversation: Conversation) -> None:
    attach(conversation)
    conversation.report(Detach(holder=""))
    conversation.heard(Goodbye(kept=False), 10.0)
    conversation.heard(pool_found("/other"), 10.0)
    assert is_settled(conversation)


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (
            Promoted(holder="h", slot=3, generation=1, key="a\n"),
            r"micro-batch 'a\\n' is on the device, and slot 3 released",
        ),
        (Finished(holder="h", key="a"), "micro-batch 'a' is consumed"),
        (Finished(holder="h", key="a", reason="no\nroom"), r"micro-batch 'a' is dropped: no\nroom"),
        (Detach(holder="h"), "this trainer leaves"),
    ],
)
def test_what_was_not_confirmed_is_told_in_words(report: Promoted | Finished | Detach, words: str) -> None:
    assert told(report) == words


# --- demand ---


def test_demand_is_stated_only_while_attached(conversation: Conversation, queue: FakeQueue) -> None:
    assert conversation.want() == []
    conversation.look(0.0)
    assert conversation.want() == []
    attach(conversation)
    queue.credit_total = 5
    assert only(conversation.want(), Want).credit_total == 5
    conversation.heard(Goodbye(kept=True), 1.0)
    assert conversation.want() == []


def test_unmet_demand_is_stated_again(conversation: Conversation) -> None:
    attach(conversation)
    assert conversation.next_deadline() == 2.0
    only(conversation.tick(2.0), Want)
    assert conversation.tick(3.9) == []
    only(conversation.tick(4.0), Want)


def test_it_asks_for_no_wake_up_while_there_is_nothing_to_say(
    conversation: Conversation, queue: FakeQueue
) -> None:
    attach(conversation)
    queue.is_unmet = False
    assert conversation.next_deadline() is None
    said = only(conversation.report(FINISHED), Finished)
    assert conversation.next_deadline() is not None
    conversation.heard(Done(id=said.id), 1.0)
    assert conversation.next_deadline() is None
    queue.is_unmet = True
    assert conversation.next_deadline() is not None


def test_lends_and_lost_keys_reach_the_queue(conversation: Conversation, queue: FakeQueue) -> None:
    attach(conversation)
    notice = KeyGone(key="k", state=MicroBatchState.LOST, reason="its trainer died")
    assert conversation.heard(LEND, 1.0) == conversation.heard(notice, 1.0) == []
    assert (queue.lends, queue.notices) == ([LEND], [notice])


def test_every_request_that_is_answered_has_an_id_of_its_own(conversation: Conversation) -> None:
    said: list[TrainerRequest] = [*conversation.look(0.0), *conversation.tick(2.0)]
    said += conversation.heard(pool_found(), 2.0)
    conversation.heard(ATTACHED, 2.0)
    said += [*conversation.report(PROMOTED), *conversation.report(FINISHED)]
    said += conversation.heard(Goodbye(kept=True), 3.0)
    said += conversation.heard(pool_found(), 3.0)
    ids = [msgspec.structs.asdict(request)["id"] for request in said]
    assert len(set(ids)) == len(said) == 7
    assert 0 not in ids
