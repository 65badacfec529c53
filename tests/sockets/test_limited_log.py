"""What is left of an event in the log that comes too often."""

from __future__ import annotations

import logging

import pytest

from forebay.sockets.limited_log import LimitedLog
from forebay.wire import Event

LOG = logging.getLogger("forebay.test")


def test_what_a_handler_raises_does_not_reach_whoever_tells() -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002 - as logging has it
            raise OSError("disk full")

    handler = Broken()
    LOG.addHandler(handler)
    try:
        LimitedLog(LOG).tell(logging.WARNING, Event.REFUSE, key="k")
    finally:
        LOG.removeHandler(handler)


def test_the_log_gets_twenty_of_an_event_in_a_window_and_then_how_many_were_left_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("forebay.sockets.limited_log.time.monotonic", lambda: now[0])
    log = LimitedLog(LOG)
    with caplog.at_level(logging.INFO):
        for number in range(50):
            log.tell(logging.INFO, Event.REFUSE, key=number)
        log.tell(logging.WARNING, Event.ATTACH, key="k")
        assert [record.getMessage() for record in caplog.records[-2:]] == ["refuse key=19", "attach key=k"]
        assert len(caplog.records) == 21
        now[0] += 10.0
        log.tell(logging.INFO, Event.REFUSE, key=50)
    assert [(record.levelname, record.getMessage()) for record in caplog.records[-2:]] == [
        ("WARNING", "left_out kind=refuse count=30"),
        ("INFO", "refuse key=50"),
    ]


def test_an_events_kinds_are_counted_apart(caplog: pytest.LogCaptureFixture) -> None:
    log = LimitedLog(LOG)
    for _ in range(30):
        log.tell(logging.WARNING, Event.REFUSE, code="no_slot")
    log.tell(logging.WARNING, Event.REFUSE, code="stale")
    assert caplog.messages == ["refuse code=no_slot"] * 20 + ["refuse code=stale"]
