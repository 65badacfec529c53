"""What the trainer says to the daemon, and when it says it again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from forebay.trainer.conversation import Conversation, Phase
from forebay.trainer.conversation_words import told
from forebay.wire import (
    MAX_ENTRIES,
    PROTOCOL_VERSION,
    Attach,
    Attached,
    Detach,
    Done,
    FindPool,
    Finished,
    Goodbye,
    KeyGone,
    Lend,
    Limits,
    MicroBatchState,
    Peer,
    PoolFound,
    Promoted,
    RefusalCode,
    Refused,
    RefusedError,
    Stale,
    TrainerRequest,
    VersionMismatchError,
    Want,
)

R = TypeVar("R", bound=TrainerRequest)
RETRY_S = 2.0
LIMITS = Limits()
LEND = Lend(slot=3, generation=7, key="a", file_bytes=4096, on_credit=True)
PROMOTED = Promoted(holder="", slot=3, generation=7, key="a")
FINISHED = Finished(holder="", key="b")
FINISHED_IN_SLOT = Finished(holder="", key="c", slot=4, generation=9, reason="it did not fit")


@dataclasses.dataclass
class FakeQueue:
    """The trainer's queue and its lock, as the conversation sees them."""

    held_slots: tuple[tuple[int, int], ...] = ()
    promoted: tuple[tuple[str, str], ...] = ()
    credit_total: int = 1
    wanted: tuple[str, ...] = ()
    is_unmet: bool = True
    lends: list[Lend] = dataclasses.field(default_factory=list)
    notices: list[KeyGone] = dataclasses.field(default_factory=list)
    stales: list[Stale] = dataclasses.field(default_factory=list)
    told: list[tuple[Path, bool]] = dataclasses.field(default_factory=list)
    locked: Path | None = None
    locks: int = 0

    def attached(self, pool: Path, limits: Limits, *, same_pool: bool) -> None:
        assert limits == LIMITS
        self.told.append((pool, same_pool))

    def held(self) -> tuple[tuple[int, int], ...]:
        return self.held_slots

    def on_device(self) -> tuple[tuple[str, str], ...]:
        return self.promoted

    def demand(self) -> tuple[int, tuple[str, ...], bool]:
        return self.credit_total, self.wanted, self.is_unmet

    def lent(self, lend: Lend) -> None:
        self.lends.append(lend)

    def stale(self, notice: Stale) -> None:
        self.stales.append(notice)

    def gone(self, notice: KeyGone) -> None:
        self.notices.append(notice)

    def lock_in(self, pool: Path, _epoch: str) -> tuple[str, bool]:
        is_same = self.locked == pool
        self.locked = pool
        self.locks += not is_same
        return f"holder{self.locks}", is_same


@pytest.fixture
def queue() -> FakeQueue:
    return FakeQueue()


@pytest.fixture
def conversation(queue: FakeQueue) -> Conversation:
    peer = Peer(name="trainer", pid=1, host="here")
    return Conversation(peer, "train", queue, queue.lock_in, retry_s=RETRY_S)


def only(requests: list[TrainerRequest], kind: type[R]) -> R:
    assert len(requests) == 1, requests
    assert isinstance(requests[0], kind), requests
    return requests[0]


def is_settled(conversation: Conversation) -> bool:
    return conversation.is_settled


def kinds(requests: list[TrainerRequest]) -> list[str]:
    return [type(request).__name__ for request in requests]


def pool_found(pool: str = "/pool", *, version: int = PROTOCOL_VERSION) -> PoolFound:
    return PoolFound(version=version, software="0", epoch="epoch", pool=pool)


def refused(code: RefusalCode, *, version: int = PROTOCOL_VERSION) -> Refused:
    return Refused(code=code, words="no", version=version)


ATTACHED = Attached(epoch="epoch", limits=LIMITS)


def attach(conversation: Conversation, now: float = 0.0, pool: str = "/pool") -> Attach:
    """Says and hears all that leads to being attached; returns what was asked for."""
    if conversation.phase is not Phase.LOOKING or now == 0.0:
        conversation.look(now)
    request = only(conversation.heard(pool_found(pool), now), Attach)
    conversation.heard(ATTACHED, now)
    assert conversation.phase is Phase.ATTACHED
    return request


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
