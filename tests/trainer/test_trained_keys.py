"""A key is trained once; a step that fails gives it back."""

from __future__ import annotations

import pytest

from forebay.trainer import AlreadyTrainedError
from forebay.trainer.trained_keys import TrainedKeys


def train(keys: TrainedKeys, key: str | None, claimed: str = "") -> None:
    with keys.training(key) as claim:
        if claimed:
            claim(claimed)


def fail(keys: TrainedKeys, key: str | None, claimed: str = "") -> None:
    def step() -> None:
        with keys.training(key) as claim:
            if claimed:
                claim(claimed)
            raise RuntimeError("the step")

    with pytest.raises(RuntimeError, match="the step"):
        step()


@pytest.fixture
def keys() -> TrainedKeys:
    return TrainedKeys(100)


def test_a_key_that_was_trained_is_not_trained_again(keys: TrainedKeys) -> None:
    train(keys, "k")
    assert "k" in keys
    for _ in range(3):
        with pytest.raises(AlreadyTrainedError, match=r"'k' was trained .* use a new key"):
            train(keys, "k")
    assert "k" in keys


def test_a_key_that_is_being_trained_is_not_trained_beside_that(keys: TrainedKeys) -> None:
    with keys.training("k"):
        assert "k" in keys
        with pytest.raises(AlreadyTrainedError):
            train(keys, "k")
        assert "k" in keys, "the refusal of the second must not give up the first's"
    with pytest.raises(AlreadyTrainedError):
        train(keys, "k")


def test_a_key_whose_step_failed_may_come_again(keys: TrainedKeys) -> None:
    fail(keys, "k")
    assert "k" not in keys
    train(keys, "k")
    assert "k" in keys


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_it_may_whatever_the_step_failed_with(keys: TrainedKeys, error: type[BaseException]) -> None:
    with pytest.raises(error), keys.training("k"):
        raise error
    train(keys, "k")


def test_a_failed_step_gives_up_no_key_but_its_own(keys: TrainedKeys) -> None:
    train(keys, "a")
    fail(keys, "b")
    assert "a" in keys


def test_a_key_that_comes_with_the_micro_batch_is_trained_once_as_well(keys: TrainedKeys) -> None:
    train(keys, None, claimed="k")
    with pytest.raises(AlreadyTrainedError):
        train(keys, None, claimed="k")
    with pytest.raises(AlreadyTrainedError):
        train(keys, "k")
    assert "k" in keys


def test_a_key_that_came_with_the_micro_batch_of_a_failed_step_may_come_again(keys: TrainedKeys) -> None:
    fail(keys, None, claimed="k")
    assert "k" not in keys
    train(keys, None, claimed="k")


def test_a_step_may_claim_the_key_that_it_named(keys: TrainedKeys) -> None:
    train(keys, "k", claimed="k")
    assert "k" in keys
    fail(keys, "l", claimed="l")
    assert "l" not in keys


def test_what_has_no_key_is_trained_as_often_as_it_comes(keys: TrainedKeys) -> None:
    for key in (None, ""):
        for _ in range(3):
            train(keys, key)
            train(keys, None, claimed="")
    assert "" not in keys


def test_the_oldest_keys_are_forgotten_first() -> None:
    keys = TrainedKeys(3)
    for key in "abcde":
        train(keys, key)
    assert [key for key in "abcde" if key in keys] == ["c", "d", "e"]
    train(keys, "a")
    assert [key for key in "abcde" if key in keys] == ["a", "d", "e"]
