"""A daemon whose start fails lets go of all that it had taken by then, and of nothing that it had found."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forebay.daemon import Settings
from forebay.daemon import server as server_module
from forebay.daemon.executor import Executor
from forebay.daemon.ledger import Ledger
from forebay.daemon.server import Server
from forebay.shm import HOLDERS_NAME, Outcome, lock_holder
from forebay.wire import MicroBatchState, Peer

WHERE: list[tuple[Any, str]] = [
    (server_module, "found_in"),
    (server_module, "ServerSockets"),
    (Ledger, "__init__"),
    (Executor, "__init__"),
    (Ledger, "adopt"),
    (Executor, "perform"),
]


_PATIENCE_S = 60.0


class BrokenStartError(Exception):
    """What goes wrong in these tests."""


@pytest.fixture
def start(shm_dir: Path) -> Callable[[], Server]:
    names = ("control_endpoint", "data_endpoint", "trainer_endpoint")
    endpoints: dict[str, Any] = {name: f"ipc://{shm_dir}/{name}.sock" for name in names}
    settings = Settings(pool=str(shm_dir / "pool"), slots=1, slot_initial_bytes=4096, **endpoints)
    return lambda: Server(settings, software="0", epoch="1")


def fail(*_arguments: object, **_named: object) -> None:
    raise BrokenStartError


@pytest.mark.parametrize(("owner", "name"), WHERE, ids=[name for _, name in WHERE])
def test_a_start_that_fails_holds_neither_pool_nor_socket_nor_thread(
    start: Callable[[], Server], shm_dir: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    before = set(threading.enumerate())
    with monkeypatch.context() as broken:
        broken.setattr(owner, name, fail)
        with pytest.raises(BrokenStartError):
            start()
    for thread in set(threading.enumerate()) - before:
        thread.join(_PATIENCE_S)  # what was told to end may take a moment
        assert not thread.is_alive(), thread
    assert not list(shm_dir.glob("*.sock"))
    start().close()
    assert list(shm_dir.iterdir()) == []


def test_a_start_that_fails_leaves_the_pool_that_it_found(
    start: Callable[[], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    outcome = Outcome(queue="train", key="k", attempt="1", state=MicroBatchState.CONSUMED)
    server._pool.outcomes.write(outcome)
    server.close(failed=True)
    with monkeypatch.context() as broken:
        broken.setattr(Ledger, "adopt", fail)
        with pytest.raises(BrokenStartError):
            start()
    after = start()
    assert after._ledger._book.find("train", "k") is not None
    after.close()


def test_a_start_that_fails_leaves_the_locks_of_the_dead_and_one_that_serves_those_of_who_has_something(
    start: Callable[[], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    pool = server._pool.path
    on_device, over = (
        Outcome(queue="train", key="k", attempt="1", state=state, holder=holder)
        for state, holder in ((MicroBatchState.ON_DEVICE, "has"), (MicroBatchState.CONSUMED, "had"))
    )
    server._pool.outcomes.write(on_device)
    server._pool.outcomes.write(msgspec.structs.replace(over, key="over"))
    for name in ("has", "had", "never"):
        lock_holder(pool, name, Peer(name=name, pid=42, host="gpu")).close()
    server.close(failed=True)
    with monkeypatch.context() as broken:
        broken.setattr(Server, "_open_http", fail)
        with pytest.raises(BrokenStartError):
            start()
    assert {path.name for path in (pool / HOLDERS_NAME).iterdir()} == {"has", "had", "never"}
    after = start()
    assert {path.name for path in (pool / HOLDERS_NAME).iterdir()} == {"has"}
    [trainer] = after._ledger._book.attachments
    assert trainer.peer.name == "has"
    after.close()
