"""The JSON that the page is drawn from, made of a ledger's books without a socket or a loop."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec
import pytest

from forebay.daemon import look_pages
from forebay.daemon.http_answers import Page, Request
from forebay.daemon.look_pages import LookPages
from forebay.daemon.loop_questions import LoopQuestions
from forebay.wire import Events, Moment, Status
from forebay.wire.lives import Phase

from .ledger_driver import Driver
from .ledger_peers import Sender, Trainer

T = TypeVar("T")
HOSTILE = "<script>\"'\x1b\u202e\r\n\x00é\U0001f600</script>"


class AtOnce:
    """A loop that answers on the spot, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def ask(self, question: Callable[[], T]) -> T:
        self.asked += 1
        return question()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver(slots=3)
    monkeypatch.setattr("forebay.daemon.look_pages.time.monotonic", lambda: driver.now)
    monkeypatch.setattr(look_pages, "_FRESH_S", -1.0)
    return driver


@pytest.fixture
def loop() -> AtOnce:
    return AtOnce()


@pytest.fixture
def pages(driver: Driver, loop: AtOnce) -> dict[str, Page]:
    return LookPages(cast(LoopQuestions, loop), driver.ledger).by_path()


def got(pages: dict[str, Page], path: str, query: str = "") -> Any:
    answer = pages[path](Request(path, query))
    assert (answer.status, answer.content_type) == (200, "application/json")
    assert answer.body.isascii()
    assert answer.body.decode().removesuffix("\n").isprintable()
    return json.loads(answer.body)


def events(pages: dict[str, Page], query: str = "") -> Events:
    return msgspec.convert(got(pages, "/events.json", query), Events, strict=False)


def staged(driver: Driver, sender: Sender, *keys: str) -> None:
    for key in keys:
        sender.fill(sender.grant(key))
        driver.now += 1.0


def test_the_state_is_the_status_that_inspectors_get(
    driver: Driver, sender: Sender, trainer: Trainer, pages: dict[str, Page]
) -> None:
    staged(driver, sender, "k0", HOSTILE)
    trainer.lends(1)
    sender.grant("k2")
    shown = msgspec.convert(got(pages, "/state.json"), Status, strict=False)
    assert msgspec.structs.replace(driver.status(), id=0, peers=()) == msgspec.structs.replace(shown, peers=())
    assert [slot.state for slot in shown.slots] == ["LENT", "READY", "FILLING"]


def test_events_are_told_from_where_the_asker_is(driver: Driver, sender: Sender, pages: dict[str, Page]) -> None:
    staged(driver, sender, "k0")
    first = events(pages)
    assert [moment.number for moment in first.moments] == list(range(1, first.last + 1))
    assert events(pages, f"after={first.last}").moments == ()
    staged(driver, sender, "k1")
    later = events(pages, f"after={first.last}")
    assert {moment.key for moment in later.moments} == {"k1"}
    assert later.moments[0].number == first.last + 1
    assert (later.epoch, later.oldest, later.now_s) == (first.epoch, 1, driver.now)


def test_whoever_wants_only_what_comes_learns_where_that_begins(
    driver: Driver, sender: Sender, pages: dict[str, Page]
) -> None:
    staged(driver, sender, "k0", "k1")
    now = events(pages, "after=-1")
    assert now.moments == ()
    assert now.last == events(pages).last > 0


def test_pages_of_events_miss_and_repeat_nothing(driver: Driver, sender: Sender, pages: dict[str, Page]) -> None:
    staged(driver, sender, "k0", "k1", "k2")
    whole = events(pages)
    after = 0
    moments: list[Moment] = []
    while (page := events(pages, f"after={after}&limit=2")).moments:
        moments += page.moments
        after = page.last
    assert tuple(moments) == whole.moments


def test_of_a_key_or_queue_only_its_own_is_told_however_far_the_look_goes(
    driver: Driver, sender: Sender, pages: dict[str, Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_pages, "_MOST_LOOKED_AT", 2)
    staged(driver, sender, "k0", "k1", "k2")
    after = 0
    moments: list[Moment] = []
    while after < events(pages, "after=-1").last:
        page = events(pages, f"after={after}&key=k1&queue=train")
        assert page.last > after
        moments += page.moments
        after = page.last
    assert [moment.event for moment in moments] == ["offered", "filling", "ready"]
    assert {moment.key for moment in moments} == {"k1"}
    assert events(pages, "queue=another").moments == ()


UNREADABLE = (
    "after=x",
    "after=-2",
    "limit=0",
    "limit=1001",
    "follow_s=3",
    "a=1",
    "after",
    "=",
    "key=%ff",
    "&a=b" * 9,
)


@pytest.mark.parametrize("query", UNREADABLE)
def test_a_query_that_cannot_be_read_is_told_and_asks_nobody(
    pages: dict[str, Page], loop: AtOnce, query: str
) -> None:
    for path in ("/events.json", "/timeline.json"):
        answer = pages[path](Request(path, query))
        assert answer.status == 400
        assert b"the query cannot be read" in answer.body
        assert answer.body.decode().removesuffix("\n").isprintable()
    assert loop.asked == 0


def test_a_hostile_query_is_told_without_what_could_drive_a_terminal(pages: dict[str, Page]) -> None:
    answer = pages["/events.json"](Request("/events.json", "%1b%5b31m%e2%80%ae%3Cscript%3E=1"))
    assert answer.status == 400
    assert answer.content_type.startswith("text/plain")
    assert answer.body.decode().removesuffix("\n").isprintable()


def test_a_timeline_has_the_spans_of_the_last_micro_batches(
    driver: Driver, sender: Sender, trainer: Trainer, pages: dict[str, Page]
) -> None:
    staged(driver, sender, "k0")
    driver.now += 100.0
    staged(driver, sender, HOSTILE)
    (lend, _) = trainer.lends(2)
    driver.now += 5.0
    trainer.promoted(lend)
    driver.now += 1.0
    told = got(pages, "/timeline.json")
    phases = {life["key"]: [span["phase"] for span in life["spans"]] for life in told["lives"]}
    assert phases["k0"] == [Phase.WAITING, Phase.FILLING, Phase.READY, Phase.LENT, Phase.ON_DEVICE]
    assert phases[HOSTILE][-1] == Phase.LENT
    assert [span["end"] for span in told["lives"][1]["spans"]][-1] == "open"
    trainer.finished("k0")
    driver.now += 30.0
    assert [life["key"] for life in got(pages, "/timeline.json", "seconds=10")["lives"]] == [HOSTILE]
    assert told["now_s"] == driver.now - 30.0


def test_a_timeline_looks_at_no_more_than_it_may(
    driver: Driver, sender: Sender, pages: dict[str, Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_pages, "_TIMELINE_MOMENTS", 4)
    staged(driver, sender, "k0", "k1", "k2")
    told = got(pages, "/timeline.json")
    assert told["last"] == events(pages).last
    assert [life["key"] for life in told["lives"]] == ["k1", "k2"]
    assert told["began_at"] == events(pages).moments[-4].at_s


def test_many_who_look_at_once_cost_the_loop_one_look(
    driver: Driver, sender: Sender, loop: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_pages, "_FRESH_S", 60.0)
    pages = LookPages(cast(LoopQuestions, loop), driver.ledger).by_path()
    staged(driver, sender, "k0")
    for _, path in itertools.product(range(10), ("/state.json", "/timeline.json")):
        got(pages, path)
    got(pages, "/timeline.json", "seconds=5")
    assert loop.asked == 2


def test_what_the_loop_handed_out_does_not_change_when_the_ledger_goes_on(driver: Driver, sender: Sender) -> None:
    staged(driver, sender, "k0")
    handed = driver.ledger.told(0, 1000, driver.now)
    before = handed.kept.told(1000)
    staged(driver, sender, "k1", "k2")
    assert handed.kept.told(1000) == before
    assert before[1] == before[0][-1].number == handed.kept.last


def test_the_page_is_one_text_that_allows_nothing_but_itself_and_needs_no_loop(
    pages: dict[str, Page], loop: AtOnce
) -> None:
    answer = pages["/"](Request("/"))
    assert (answer.status, answer.content_type) == (200, "text/html; charset=utf-8")
    policy = dict(answer.headers)["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    text = answer.body.decode().replace("http://www.w3.org/2000/svg", "")
    forbidden = ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "://", " onclick", "/*s")
    assert [words for words in forbidden if words in text] == []
    assert loop.asked == 0
