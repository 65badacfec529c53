"""A ledger whose micro-batches take the whole way, and its history as a trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from forebay.cli.history import Clock
from forebay.cli.tracing.events import trace_of
from forebay.cli.tracing.excerpt import last_of
from forebay.wire import Events, GetEvents, Moment
from forebay.wire.life_reader import past_of
from forebay.wire.plain_json import json_line

from ..daemon.ledger_driver import INSPECTOR, Driver, only
from ..daemon.ledger_peers import Sender, Trainer


def history_of(driver: Driver, first: int = 0) -> tuple[Sequence[Moment], Clock]:
    driver.heard(INSPECTOR)
    told = only(driver.say(INSPECTOR, GetEvents(id=driver.new_id())), Events)
    return told.moments[first:], Clock(told.now_s, 0.0)


def trace_by(
    driver: Driver, *, first: int = 0, last: int = 1000, seconds: float | None = None, **merged: Any
) -> Any:
    """Returns the trace as it is written, of what is not forgotten."""
    moments, clock = history_of(driver, first)
    excerpt = last_of(past_of(moments, clock.now_s), last, seconds)
    return json.loads(json_line(trace_of(excerpt, driver.status(), merged)))


def passes(driver: Driver, sender: Sender, trainer: Trainer, *keys: str) -> None:
    """Has micro-batches take the whole way, a second in each phase."""
    for key in keys:
        driver.now += 1.0
        grant = sender.grant(key, version=4)
        driver.now += 1.0
        sender.fill(grant)
        driver.now += 1.0
        (lend,) = trainer.lends(0, key)
        driver.now += 1.0
        trainer.promoted(lend)
        driver.now += 1.0
        trainer.finished(key)
