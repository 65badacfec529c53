"""Where a worker serves: endpoints that are held or wrong, and who may be served."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from forebay import HeldError, TrainerWorker
from forebay.wire import SettingError, UsageError

from .processes import EVENT_S
from .served import Engine, Served, payload, talk


@pytest.mark.parametrize("name", ["worker_endpoint", "worker_data_endpoint"])
def test_an_endpoint_that_a_worker_holds_is_named_with_its_holder(shm_dir: Path, name: str) -> None:
    (shm_dir / "other").mkdir()
    with Served(shm_dir) as served:
        taken = getattr(served.settings, name)
        before = sorted(shm_dir.rglob("*"))
        settings: dict[str, Any] = {name: taken}
        with pytest.raises(HeldError) as caught:
            Served(shm_dir / "other", **settings)
        assert f"{taken.removeprefix('ipc://')}.lock is held by trainer pid {os.getpid()}" in str(caught.value)
        assert sorted(shm_dir.rglob("*")) == before
        assert talk(served.endpoint, lambda handle: handle.status()).state == "ready"


def test_a_port_that_a_worker_holds_is_named_with_its_holder(shm_dir: Path) -> None:
    ports: dict[str, Any] = {"worker_endpoint": "tcp://127.0.0.1:*", "worker_data_endpoint": "tcp://127.0.0.1:*"}
    with Served(shm_dir, **ports) as served:
        with pytest.raises(
            HeldError, match=f"worker_endpoint {served.endpoint} is held by trainer pid {os.getpid()}"
        ):
            Served(shm_dir, **(ports | {"worker_endpoint": served.endpoint}))
        assert talk(served.endpoint, lambda handle: handle.train_step(payload(1))).value["number"] == 1


@pytest.mark.parametrize("address", ["nonsense", "inproc://x"])
def test_what_is_no_address_is_a_wrong_setting(shm_dir: Path, address: str) -> None:
    for name in ("worker_endpoint", "worker_data_endpoint"):
        settings: dict[str, Any] = {name: address}
        with pytest.raises(SettingError, match=name):
            Served(shm_dir, **settings)
    assert list(shm_dir.iterdir()) == []


def test_only_a_staged_engine_is_served() -> None:
    with pytest.raises(UsageError, match=r"got Engine; limit a forebay\.StagedEngine"):
        TrainerWorker(Engine())  # type: ignore[arg-type]


def test_a_worker_says_where_it_is_and_what_it_has(shm_dir: Path) -> None:
    with Served(shm_dir) as served:
        assert repr(served.worker) == f"TrainerWorker({served.endpoint!r}, ready, 5 methods)"


def test_a_worker_that_cannot_be_made_leaves_nothing(shm_dir: Path) -> None:
    (shm_dir / "worker_data.sock").mkdir()
    before = set(threading.enumerate())
    with pytest.raises(SettingError, match="worker_data_endpoint"):
        Served(shm_dir)
    assert [path.name for path in shm_dir.iterdir()] == ["worker_data.sock"]
    for thread in set(threading.enumerate()) - before:
        # It may have said that it is done, and be on its way out.
        thread.join(EVENT_S)
        assert not thread.is_alive(), thread
