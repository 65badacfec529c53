"""Sources that yield what is none, and what the loop says to them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from forebay.orchestrator_client.ahead_books import AheadBooks
from forebay.orchestrator_client.source import MicroBatch
from forebay.orchestrator_client.stage_ahead import StageAhead
from forebay.wire import UsageError


def books() -> AheadBooks:
    return AheadBooks(2, across_steps=True, run="run")


def test_a_micro_batch_without_a_payload_is_refused_and_not_entered() -> None:
    mine = books()
    with pytest.raises(UsageError, match="a micro-batch without a payload"):
        mine.pulled(MicroBatch(None), (0.0, 1.0))
    assert repr(mine) == repr(books())


def test_an_end_of_a_step_that_is_no_bool_is_an_error_and_nothing_is_entered() -> None:
    mine = books()
    odd: Any = np.array([True, False])
    with pytest.raises(ValueError, match="ambiguous"):
        mine.pulled(MicroBatch({}, ends_step=odd), (0.0, 1.0))
    assert repr(mine) == repr(books())


@pytest.mark.parametrize("source", [None, [1], iter([1]), lambda: None])
def test_a_source_that_is_no_async_iterable_is_refused_at_once(source: Any) -> None:
    trainer: Any = None
    with pytest.raises(UsageError, match="limit an async iterable of MicroBatch"):
        StageAhead(trainer, source)


def test_a_source_that_is_an_async_iterator_is_taken() -> None:
    async def source() -> AsyncIterator[MicroBatch]:
        yield MicroBatch({})

    trainer: Any = None
    assert "StageAhead" in repr(StageAhead(trainer, source()))
