"""All pages of a history make one, without a gap, whatever happens between two of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from forebay.cli.told_history import ToldHistory, ask_history
from forebay.wire import MAX_MOMENTS, Events, GetEvents, Message, Moment


class Pages:
    """A daemon that tells its history in pages, and goes on meanwhile."""

    def __init__(self, moments: int, *, before_page: Callable[[Pages, int], None] = lambda *_: None) -> None:
        self.epoch, self.now_s, self.asked = "one", 0.0, 0
        self.moments: list[Moment] = []
        self.add(moments)
        self._before_page = before_page

    def add(self, count: int) -> None:
        for _ in range(count):
            self.now_s += 1.0
            number = self.moments[-1].number + 1 if self.moments else 1
            self.moments.append(Moment(number=number, at_s=self.now_s, event="x"))

    async def ask(self, request: Message, answer: type[Any], what: str) -> Any:  # noqa: ARG002
        assert isinstance(request, GetEvents)
        self._before_page(self, self.asked)
        self.asked += 1
        after = 0 if not self.moments or request.after > self.moments[-1].number else request.after
        page = tuple(moment for moment in self.moments if moment.number > after)[:MAX_MOMENTS]
        return Events(
            moments=page,
            last=page[-1].number if page else after,
            oldest=self.moments[0].number if self.moments else 1,
            now_s=self.now_s,
            epoch=self.epoch,
        )


def read(pages: Pages) -> ToldHistory:
    return asyncio.run(ask_history(pages))


@pytest.mark.parametrize("count", [0, 1, MAX_MOMENTS - 1, MAX_MOMENTS, MAX_MOMENTS + 1, 3 * MAX_MOMENTS])
def test_all_pages_are_read_and_not_one_more_than_it_takes(count: int) -> None:
    pages = Pages(count)
    history = read(pages)
    assert [moment.number for moment in history.moments] == list(range(1, count + 1))
    assert history.now_s == float(count)
    assert pages.asked == max(1, -(-count // MAX_MOMENTS))
    assert not history.has_forgotten


def test_a_daemon_that_is_busier_than_the_reader_does_not_keep_it_for_ever() -> None:
    pages = Pages(MAX_MOMENTS, before_page=lambda pages, asked: pages.add(MAX_MOMENTS if asked else 0))
    history = read(pages)
    assert len(history.moments) <= 2 * MAX_MOMENTS
    assert history.now_s == history.moments[-1].at_s


def test_what_is_forgotten_between_two_pages_leaves_no_gap() -> None:
    def forget(pages: Pages, asked: int) -> None:
        if asked == 1:
            del pages.moments[: MAX_MOMENTS + 500]

    history = read(Pages(MAX_MOMENTS + 900, before_page=forget))
    assert [moment.number for moment in history.moments] == list(range(MAX_MOMENTS + 501, MAX_MOMENTS + 901))
    assert history.has_forgotten


def test_of_a_daemon_that_restarts_between_two_pages_only_the_new_history_is_told() -> None:
    def restart(pages: Pages, asked: int) -> None:
        if asked == 1:
            pages.epoch = "two"
            pages.moments.clear()
            pages.add(MAX_MOMENTS + 5)

    history = read(Pages(MAX_MOMENTS + 900, before_page=restart))
    assert history.epoch == "two"
    assert [moment.number for moment in history.moments] == list(range(1, MAX_MOMENTS + 6))
