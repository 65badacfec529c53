"""From moments to lives, by tables: what is known of each phase, and what is not."""

from __future__ import annotations

import pytest

from forebay.wire import Moment
from forebay.wire.life_reader import past_of
from forebay.wire.lives import Life, Past, Span, in_slots

NOW = 100.0
PASSED = ((1, "offered"), (2, "filling"), (4, "ready"), (7, "lent"), (8, "released"), (8, "on_device"))


def moments(*told: tuple[float, str], slot: int = 0, generation: int = 3, key: str = "a") -> list[Moment]:
    """Makes the moments of one micro-batch, as a daemon tells them."""
    return [
        Moment(
            number=number,
            at_s=float(at_s),
            event=event,
            queue="train",
            key=key,
            slot=slot if event in ("filling", "ready", "lent", "released", "quarantined", "returned") else -1,
            generation=0 if event == "offered" else generation,
            who=f"who {event}" if event in ("offered", "lent") else "",
            words="payload_bytes=600 policy_version=2" if event == "offered" else "",
        )
        for number, (at_s, event) in enumerate(told, start=1)
    ]


def renumbered(*parts: list[Moment]) -> list[Moment]:
    fields = ("at_s", "event", "queue", "key", "slot", "generation", "who", "words")
    every = [moment for part in parts for moment in part]
    return [
        Moment(number=number, **{name: getattr(moment, name) for name in fields})
        for number, moment in enumerate(every, start=1)
    ]


def told(span: Span) -> str:
    """Spells a span: a tilde stands before a beginning that is not known, `+` behind what goes on, `?` behind
    what ended nobody knows when."""
    begin = "" if span.is_begin_known else "~"
    end = {"known": "", "open": "+", "lost": "?"}[span.end]
    return f"{span.phase} {begin}{span.began_at:g}-{span.ended_at:g}{end}"


def spans_of(*told_moments: Moment) -> list[list[str]]:
    return [[told(span) for span in life.spans] for life in past_of(told_moments, NOW).lives]


def life_of(told_moments: list[Moment]) -> Life:
    (life,) = past_of(told_moments, NOW).lives
    return life


@pytest.mark.parametrize(
    ("steps", "spans"),
    [
        (PASSED[:1], ["waiting 1-100+"]),
        (PASSED[:4], ["waiting 1-2", "filling 2-4", "ready 4-7", "lent 7-100+"]),
        ((*PASSED, (9, "consumed")), ["waiting 1-2", "filling 2-4", "ready 4-7", "lent 7-8", "on_device 8-9"]),
        (((1, "offered"), (2, "filling"), (5, "dropped")), ["waiting 1-2", "filling 2-5"]),
        (
            ((7, "lent"), (8, "quarantined"), (9, "returned"), (9, "lent")),
            ["ready ~7-7", "lent 7-8", "quarantined 8-9", "ready 9-9", "lent 9-100+"],
        ),
    ],
)
def test_each_phase_lasts_from_its_moment_to_the_next(
    steps: tuple[tuple[float, str], ...], spans: list[str]
) -> None:
    assert spans_of(*moments(*steps)) == [spans]


@pytest.mark.parametrize(
    ("first", "before"),
    [
        ("filling", "waiting"),
        ("ready", "filling"),
        ("lent", "ready"),
        ("released", "lent"),
        ("quarantined", "lent"),
        ("returned", "quarantined"),
        ("consumed", "on_device"),
        ("lost", "on_device"),
    ],
)
def test_what_must_have_been_before_the_history_begins_is_cut_off_there(first: str, before: str) -> None:
    drain = Moment(number=1, at_s=3.0, event="drain")
    life, *_ = past_of(renumbered([drain], moments((8, first))), NOW).lives
    assert told(life.spans[0]) == f"{before} ~3-8"


@pytest.mark.parametrize("first", ["consumed", "lost", "dropped"])
def test_what_never_had_a_slot_here_has_an_end_and_no_made_up_time_on_the_device(first: str) -> None:
    life = life_of(moments((8, first), generation=0))
    assert (life.spans, life.outcome, life.ended_at) == ((), first, 8.0)


def test_a_drop_whose_phase_is_forgotten_has_no_span() -> None:
    life = life_of(moments((8, "dropped")))
    assert (life.spans, life.outcome) == ((), "dropped")


def test_a_slot_that_was_left_without_a_word_is_told_up_to_the_last_word() -> None:
    first = moments((1, "offered"), (2, "filling"))
    second = moments((3, "offered"), (6, "filling"), generation=4, key="b")
    past = past_of(renumbered(first, second), NOW)
    assert [[told(span) for span in life.spans] for life in past.lives] == [
        ["waiting 1-2", "filling 2-2?"],
        ["waiting 3-6", "filling 6-100+"],
    ]
    assert [life.key for life, _ in in_slots(past.lives)[0]] == ["a", "b"]


def test_a_moment_of_another_generation_belongs_to_another_life() -> None:
    lives = spans_of(*renumbered(moments(*PASSED[:3]), moments((9, "dropped"), generation=0)))
    assert lives == [["waiting 1-2", "filling 2-4", "ready 4-4?"], []]


def test_a_newer_attempt_begins_before_the_one_that_it_replaces_ends() -> None:
    old = moments(*PASSED[:3])
    dropped = Moment(number=0, at_s=9.0, event="dropped", queue="train", key="a", generation=3, words="replaced")
    new = moments((9, "filling"), generation=4)
    first, second = past_of(renumbered(old, moments((9, "offered")), [dropped], new), NOW).lives
    assert [told(span) for span in first.spans] == ["waiting 1-2", "filling 2-4", "ready 4-9"]
    assert (first.outcome, first.reason) == ("dropped", "replaced")
    assert [told(span) for span in second.spans] == ["waiting 9-9", "filling 9-100+"]
    assert second.outcome == ""


def test_who_and_how_much_is_told_by_the_offer_and_the_lend() -> None:
    life = life_of(moments(*PASSED))
    assert life.sender == "who offered"
    assert [span.trainer for span in life.spans] == ["", "", "", "who lent", "who lent"]
    assert (life.payload_bytes, life.policy_version) == (600, 2)


def incidents_of(past: Past) -> list[str]:
    return [moment.event for moment in past.incidents]


def test_all_that_is_no_mere_step_of_a_life_is_an_incident_also_what_is_not_known_yet() -> None:
    events = ("attach", "refuse", "stale", "quarantined", "dropped", "drain", "an event of tomorrow", "detach")
    told_moments = moments(*((1, event) for event in (*events, "offered", "filling", "ready")))
    assert incidents_of(past_of(told_moments, NOW)) == list(events)


def test_nothing_is_known_of_a_history_without_moments() -> None:
    assert past_of([], NOW) == Past(lives=(), incidents=(), began_at=NOW, now_s=NOW)
