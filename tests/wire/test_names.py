"""What may name a micro-batch, the same for sender and trainer."""

from __future__ import annotations

import pytest

from forebay.wire import MAX_KEY_BYTES, Limits, UsageError, check_name


def test_sender_and_trainer_have_one_limit() -> None:
    assert Limits().max_key_bytes == MAX_KEY_BYTES == 256


@pytest.mark.parametrize("name", ["k", "k" * 256, "é" * 128, "\n", "step-1/7"])
def test_text_within_the_limit_is_a_name(name: str) -> None:
    check_name("key", name)


@pytest.mark.parametrize(
    ("name", "got", "remedy"),
    [
        ("", "an empty text", "choose another"),
        ("k" * 257, "k" * 100, "choose another"),
        ("é" * 129, "é" * 100, "choose another"),
        ("\ud800", r"\ud800", "choose another"),
        (7, "7", "use str() of it"),
        (b"a", "b'a'", "use str() of it"),
        (None, "None", "use str() of it"),
    ],
)
def test_anything_else_is_refused_with_limit_and_advice(name: object, got: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_name("key of a micro-batch", name)
    words = str(caught.value)
    assert words.startswith("the key of a micro-batch; ")
    assert name is None or f"got {got}" in words
    assert f"limit text of 1 to 256 bytes of UTF-8; {remedy}" in words
    assert words.isprintable()


def test_the_receivers_own_limit_wins() -> None:
    check_name("key", "kkk", 3)
    with pytest.raises(UsageError, match="limit text of 1 to 2 bytes"):
        check_name("key", "kkk", 2)
