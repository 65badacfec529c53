"""The executor with a real pool: what a slot is used for next waits for whoever still writes to it."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.daemon import background
from forebay.daemon import executor as executor_module
from forebay.daemon.actions import Address, AwaitWriters, Channel, ForgetHolder, Reply, WatchHolder, WriteBody
from forebay.daemon.executor import Executor
from forebay.daemon.ledger import Ledger
from forebay.shm import Pool, SlotTable, holder_path
from forebay.sockets import Mailbox
from forebay.wire import (
    Arrivals,
    ChunkHeader,
    Incoming,
    Limits,
    LocalError,
    LogLimit,
    RefusalCode,
    Refused,
    cut_spans,
)

from .ledger_driver import ME, ledger_settings


class Taken:
    """An endpoint whose routing ids all belong to other clients by now."""

    def is_still(self, *_: object) -> bool:
        return False


@pytest.fixture
def pool(shm_dir: Path) -> Iterator[Pool]:
    pool = Pool(shm_dir / "pool", slot_count=1, slot_bytes=20_000, remembered_keys=1, peer=ME, epoch="1")
    yield pool
    pool.close()


@pytest.fixture
def incoming() -> Incoming:
    return Incoming()


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    mailbox = Mailbox()
    yield mailbox
    mailbox.close()


@pytest.fixture
def executor(pool: Pool, incoming: Incoming, mailbox: Mailbox) -> Iterator[Executor]:
    about: dict[str, Any] = {
        "me": ME,
        "epoch": "1",
        "software": "0",
        "pool": "/pool",
        "data_endpoint": "ipc://data",
    }
    ledger = Ledger(ledger_settings(Limits()), SlotTable(pool.found_slots()), incoming, now=0.0, **about)
    executor = Executor(ledger, pool, {Channel.CONTROL: Taken()}, mailbox)  # type: ignore[dict-item]
    yield executor
    executor.close()


def claimed(incoming: Incoming) -> tuple[Arrivals, ChunkHeader]:
    """Returns what is being filled, with one chunk that somebody writes just now."""
    arrivals = Arrivals(0, 1, 7, cut_spans((4096,), (0,), 4096))
    header = ChunkHeader(slot=0, span=0, length=4096, generation=1, token=7, offset=0, checksum=0, codec=0)
    incoming.open(arrivals)
    assert incoming.claim(header) is arrivals
    incoming.close(arrivals)
    return arrivals, header


def test_a_slot_is_written_to_only_when_the_last_chunk_of_before_is(
    pool: Pool, incoming: Incoming, executor: Executor
) -> None:
    arrivals, header = claimed(incoming)
    target = pool.files[0].body(0, 4096)
    acts = threading.Thread(target=lambda: executor.perform([AwaitWriters(arrivals), WriteBody(0, b"new!")]))
    acts.start()
    # As the thread that receives would, while the loop waits.
    target[:] = b"o" * 4096
    assert acts.is_alive()
    incoming.settle(arrivals, header, None, 0.0)
    acts.join(60)
    assert not acts.is_alive()
    assert bytes(target[:8]) == b"new!oooo"


def test_a_chunk_that_is_never_written_ends_the_daemon_before_its_slot_is_used_again(
    pool: Pool, incoming: Incoming, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrivals, _ = claimed(incoming)
    monkeypatch.setattr(executor_module, "_WRITE_S", 0.01)
    with pytest.raises(LocalError, match=r"waited 0\.01 s for a chunk to be written, in Arr.*0/1 spans"):
        executor.perform([AwaitWriters(arrivals), WriteBody(0, b"new!")])
    assert bytes(pool.files[0].body(0, 4)) == bytes(4)


def test_answers_that_are_withheld_without_end_do_not_fill_the_log(
    executor: Executor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(executor, "_log_limit", LogLimit(count=5, window_s=1e6))
    for _ in range(30):
        refused = Refused(code=RefusalCode.BAD_REQUEST, words="no")
        executor.perform([Reply(Address(Channel.CONTROL, b"peer", "key"), refused)])
        executor.flush()
    assert caplog.text.count("answers_withheld count=1") == 5


def test_a_folder_in_place_of_a_dead_holders_lock_stays_and_ends_nothing(
    pool: Pool, executor: Executor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(executor, "_log_limit", LogLimit(count=5, window_s=1e6))
    folder = holder_path(pool.path, "folder")
    folder.mkdir()
    for _ in range(30):
        executor.perform([ForgetHolder("folder")])
    assert folder.is_dir()
    assert caplog.text.count(f"holder_stays path={folder} reason=Is a directory") == 5
    folder.rmdir()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE])
def test_a_lock_that_cannot_be_looked_at_keeps_its_holder_and_does_not_fill_the_log(
    executor: Executor,
    mailbox: Mailbox,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    looks = iter(range(30))
    freed: list[str] = []

    def look(path: Path) -> None:
        if next(looks, None) is not None:
            assert not freed
            raise OSError(number, os.strerror(number), str(path))

    def holder_free(holder: str, _: float) -> list[Any]:
        freed.append(holder)
        return []

    monkeypatch.setattr(background, "wait_until_free", look)
    monkeypatch.setattr(background, "_RETRY_S", 0.0)
    monkeypatch.setattr(executor, "_log_limit", LogLimit(count=5, window_s=1e6))
    monkeypatch.setattr(executor._ledger, "holder_free", holder_free)
    executor.perform([WatchHolder("holder1")])
    while not freed:
        assert select.select([mailbox], [], [], 60.0)[0], "waited 60 s for the holder to be gone"
        for event in mailbox.take():
            event()
    assert freed == ["holder1"]
    assert caplog.text.count(f"holders/holder1 reason={os.strerror(number)}") == 5
