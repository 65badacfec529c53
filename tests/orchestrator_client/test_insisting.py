"""A client that insists on what guards its data, and servers that say more of themselves than is true."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from forebay import StagingClient, TrainerHandle
from forebay.orchestrator_client.data_endpoint import check_proof
from forebay.orchestrator_client.server_kind import DAEMON, ServerKind
from forebay.orchestrator_client.worker_calls import WORKER
from forebay.sockets import load_client_keys, make_key_files
from forebay.wire import ControlReply, ControlRequest, DataProtection, Hello, Offer, SettingError

from .fake_daemon import LIMITS, PATIENCE_S, FakeDaemon, staged
from .fake_worker import FakeWorker, talk

TCP = "tcp://127.0.0.1:*"
SECRET = {"weights": np.arange(10, dtype=np.int16)}
LEAST = [DataProtection.ENCRYPTED, DataProtection.AUTHENTICATED]


@pytest.mark.parametrize("least", LEAST)
def test_an_impostor_who_says_that_the_data_is_encrypted_hears_not_even_a_hello(
    shm_dir: Path, least: DataProtection
) -> None:
    def answer(request: ControlRequest) -> Iterable[ControlReply] | None:
        if isinstance(request, Hello):
            limits = msgspec.structs.replace(LIMITS, max_eager_bytes=1000)
            welcome = daemon.welcome(request, limits=limits)
            return [msgspec.structs.replace(welcome, data_protection=DataProtection.ENCRYPTED)]
        return [staged(request)] if isinstance(request, Offer) else None

    async def run() -> None:
        async with StagingClient(daemon.endpoint, least_data_protection=least, timeout_s=PATIENCE_S) as client:
            await client.stage(SECRET, key="k")

    with FakeDaemon(shm_dir, answer, endpoint=TCP, data_endpoint=TCP) as daemon:
        with pytest.raises(SettingError) as caught:
            asyncio.run(run())
        assert (daemon.requests, daemon.chunks) == ([], [])
    for words in (
        "least_data_protection",
        f"control_endpoint {daemon.endpoint}",
        "client_key_file and server_key_file",
        "FOREBAY_LEAST_DATA_PROTECTION",
    ):
        assert words in str(caught.value)


@pytest.mark.parametrize("least", LEAST)
def test_an_impostor_of_a_worker_hears_not_even_a_hello(
    shm_dir: Path, monkeypatch: pytest.MonkeyPatch, least: DataProtection
) -> None:
    monkeypatch.setenv("FOREBAY_LEAST_DATA_PROTECTION", least)
    with FakeWorker(shm_dir, endpoint=TCP, data_protection=DataProtection.ENCRYPTED) as worker:
        with pytest.raises(SettingError) as caught:
            talk(worker.endpoint, lambda handle: handle.call("method", SECRET, small=np.arange(3)))
        assert (worker.requests, worker.chunks) == ([], [])
    assert f"worker_endpoint {worker.endpoint}" in str(caught.value)
    assert "client_key_file and server_key_file or worker_key_file" in str(caught.value)


def test_a_handle_that_insists_needs_keys_for_a_daemon_over_tcp_too(shm_dir: Path) -> None:
    with pytest.raises(SettingError, match=r"control_endpoint tcp://127\.0\.0\.1:1"):
        TrainerHandle(
            f"ipc://{shm_dir}/worker", control_endpoint="tcp://127.0.0.1:1", least_data_protection="encrypted"
        )


@pytest.mark.parametrize("kind", [DAEMON, WORKER], ids=lambda kind: kind.name)
def test_with_keys_over_ipc_or_where_nothing_is_insisted_on_the_servers_word_counts(
    tmp_path: Path, kind: ServerKind
) -> None:
    public, secret = make_key_files(tmp_path, "own")
    keys = load_client_keys(str(secret), str(public), server_setting=kind.key_setting)
    check_proof(kind, "tcp://host:1", keys, DataProtection.ENCRYPTED)
    check_proof(kind, "ipc:///tmp/socket", None, DataProtection.ENCRYPTED)
    check_proof(kind, "tcp://host:1", None, DataProtection.NONE)
