"""The attached queue's books, without its threads."""

from __future__ import annotations

import pytest

from forebay.trainer import PromotionError
from forebay.trainer.promotions import OnDevice, Promotions
from forebay.wire import KeyGone, Lend, MicroBatchState, TreeError

ENTRY = OnDevice({"x": 1}, 8, 0.1)


def lend(key: str, slot: int = 0, generation: int = 1, *, on_credit: bool = True) -> Lend:
    return Lend(slot=slot, generation=generation, key=key, file_bytes=4096, on_credit=on_credit)


@pytest.fixture
def books() -> Promotions:
    books = Promotions(1)
    books.attached(same_pool=False)
    books.ask()
    return books


def promote(books: Promotions, key: str) -> None:
    begun = books.begin()
    assert begun is not None
    assert begun.key == key
    books.name_attempt("attempt")
    books.end(ENTRY)


def test_nothing_is_asked_for_before_the_first_take() -> None:
    books = Promotions(1)
    assert books.demand() == (0, (), False)
    books.ask()
    assert books.demand() == (1, (), True)


def test_one_is_promoted_ahead_and_the_next_only_when_that_is_taken(books: Promotions) -> None:
    books.lent(lend("a", 0))
    books.lent(lend("b", 1))
    promote(books, "a")
    assert books.begin() is None
    assert books.demand() == (2, (), False)
    assert books.take(None) == ("a", ENTRY)
    promote(books, "b")
    assert books.demand()[0] == 2
    assert books.take(None) == ("b", ENTRY)
    assert books.demand() == (3, (), True)


def test_a_wanted_key_is_promoted_at_once_and_kept_for_whoever_wants_it(books: Promotions) -> None:
    books.lent(lend("a", 0))
    promote(books, "a")
    books.want("c")
    books.lent(lend("b", 1))
    books.lent(lend("c", 2, on_credit=False))
    promote(books, "c")
    assert books.take(None) == ("a", ENTRY)
    assert books.take(None) is None
    assert books.take("c") == ("c", ENTRY)


def test_a_slot_that_is_lent_again_in_the_same_generation_is_not_promoted_twice(books: Promotions) -> None:
    books.lent(lend("a"))
    promote(books, "a")
    assert books.take(None) == ("a", ENTRY)
    books.attached(same_pool=True)
    books.lent(lend("a", on_credit=False))
    assert books.begin() is None
    books.lent(lend("b", generation=2))
    promote(books, "b")


def test_another_pool_ends_what_was_lent_but_not_what_is_on_the_device(books: Promotions) -> None:
    books.lent(lend("a", 0))
    promote(books, "a")
    books.lent(lend("b", 1))
    books.attached(same_pool=False)
    assert books.held() == ()
    assert books.on_device() == (("a", "attempt"),)
    assert books.begin() is None
    books.lent(lend("c", 0))
    assert books.held() == ((0, 1),)


def test_a_promotion_that_may_succeed_later_keeps_its_slot_and_its_place(books: Promotions) -> None:
    books.lent(lend("a", 0))
    assert books.begin() is not None
    error = PromotionError("no room on the device")
    books.end(error)
    books.lent(lend("b", 1))
    assert books.held() == ((1, 1), (0, 1))
    assert books.take(None) == ("a", error)
    promote(books, "a")
    assert books.take(None) == ("a", ENTRY)


def test_a_promotion_that_cannot_succeed_is_over(books: Promotions) -> None:
    books.lent(lend("a", 0))
    assert books.begin() is not None
    error = TreeError("no such class")
    books.end(error)
    assert (books.held(), books.on_device()) == ((), ())
    assert books.take(None) == ("a", error)
    assert books.begin() is None


def test_what_is_finished_is_no_longer_on_the_device_and_tells_its_attempt(books: Promotions) -> None:
    books.lent(lend("a"))
    promote(books, "a")
    assert books.take(None) == ("a", ENTRY)
    assert books.on_device() == (("a", "attempt"),)
    assert books.finish("a") == "attempt"
    assert books.on_device() == ()
    assert books.finish("a") == ""


def test_a_wanted_key_that_is_gone_ends_the_wait_for_it_alone(books: Promotions) -> None:
    notice = KeyGone(key="a", state=MicroBatchState.CONSUMED, reason="it was trained already")
    books.gone(notice)
    assert books.take("a") is None
    books.want("a")
    books.gone(notice)
    assert books.take(None) is None
    assert books.take("a") == notice
