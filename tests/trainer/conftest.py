"""What several tests of the trainer need in place."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from forebay.trainer import StagingQueue, TrainerSettings, daemon_feed
from forebay.trainer.daemon_feed import DaemonFeed
from forebay.trainer.once import OneWarning

from .device_arrays import free_all, live
from .fake_transfer import FakeTransfer
from .feed_desk import Desk, FakeReader, RecordedLink
from .queue_bench import Bench, bench_of


@pytest.fixture
def bench() -> Iterator[Bench]:
    with bench_of() as bench:
        yield bench


@pytest.fixture
def warnings_given(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Lets the warning of a process be given anew; returns how to see which were."""
    monkeypatch.setattr("forebay.trainer.steps.mismatch_warning", OneWarning())
    return lambda: [
        record.getMessage().partition(" difference=")[0]
        for record in caplog.records
        if record.levelno == logging.WARNING
    ]


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """A test leaves no micro-batch on the device, and no promoter."""
    free_all()
    yield
    if live():
        # A test's frames may refer to each other through the exceptions that it has caught.
        gc.collect()
    assert live() == []
    assert "forebay-promoter" not in {thread.name for thread in threading.enumerate()}


@pytest.fixture
def others() -> Iterator[ThreadPoolExecutor]:
    """Other threads of the trainer."""
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> RecordedLink:
    link = RecordedLink()
    monkeypatch.setattr(daemon_feed, "DaemonLink", link.made)
    monkeypatch.setattr(daemon_feed, "SlotReader", FakeReader)
    return link


@pytest.fixture
def desk(link: RecordedLink) -> Desk:  # noqa: ARG001 - must be in place first
    return Desk()


@pytest.fixture
def queue(link: RecordedLink) -> Iterator[StagingQueue]:  # noqa: ARG001 - must be in place first
    feed = DaemonFeed("ipc:///nowhere", "train", timeout_s=1)
    with StagingQueue(FakeTransfer(), settings=TrainerSettings(stage_batch="stage"), feed=feed) as queue:
        yield queue
