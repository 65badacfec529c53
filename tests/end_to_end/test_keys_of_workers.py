"""Workers with keys: handles and the stage-ahead loop over encrypted endpoints, and who may not call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from forebay import MicroBatch, StageAhead, TrainerHandle
from forebay.trainer.worker_access import lacks_right, own_call
from forebay.wire import (
    Call,
    CallId,
    CallRequest,
    CancelCall,
    Client,
    DataProtection,
    GetWorkerStatus,
    Hello,
    LogLimit,
    PackedTree,
    Peer,
    RefusalCode,
    RefusedError,
    Right,
    SettingError,
    WaitTimeoutError,
)

from ..sockets.key_files import KeyFiles
from .processes import EVENT_S, StartDaemon
from .served import Engine, Served, payload, talk

WORKER_TCP: dict[str, Any] = dict.fromkeys(("worker_endpoint", "worker_data_endpoint"), "tcp://127.0.0.1:*")
DAEMON_TCP: dict[str, Any] = dict.fromkeys(("control_endpoint", "data_endpoint"), "tcp://127.0.0.1:*")
CALL = Call(id=1, epoch="e", call=CallId("c", 1), method="m", options=PackedTree(b"", b""))


@pytest.fixture
def files(tmp_path: Path) -> KeyFiles:
    files = KeyFiles(tmp_path, "driver", "stager", "inspector", "eve")
    files.authorise(
        files.entry("driver", "stage", "train"),
        files.entry("stager", "stage"),
        files.entry("inspector", "inspect"),
    )
    return files


@pytest.mark.parametrize("protection", ["encrypted", "authenticated"])
def test_a_client_with_the_right_trains_with_payloads_by_either_kind_of_data_endpoint(
    shm_dir: Path, files: KeyFiles, protection: str
) -> None:
    with Served(shm_dir, **WORKER_TCP, **files.server(data_protection=protection)) as served:

        async def run(handle: TrainerHandle) -> Any:
            assert handle._calls.welcome.data_protection == DataProtection(protection)
            return (await handle.train_step(payload(7, rows=300_000))).value["number"]

        assert talk(served.endpoint, run, **files.client("driver")) == 7
    assert served.engine.trained == [7]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"worker_key_file": "eve.key"}, r"not the one in worker_key_file \(FOREBAY_WORKER_KEY_FILE\), or"),
        (
            {"server_key_file": "eve.key"},
            (
                r"not the one in server_key_file \(FOREBAY_SERVER_KEY_FILE\), which stands for worker_key_file"
                r" \(FOREBAY_WORKER_KEY_FILE\) as well, or this is not its worker endpoint"
            ),
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "words",
)
def test_a_client_with_another_key_for_the_worker_hears_which_setting_that_is(
    shm_dir: Path, files: KeyFiles, keys: dict[str, str], words: str
) -> None:
    given = files.client("driver") | {name: str(files.folder / file) for name, file in keys.items()}
    with Served(shm_dir, **WORKER_TCP, **files.server()) as served:

        async def run(_: TrainerHandle) -> None:
            raise AssertionError("it was let in")

        with pytest.raises(WaitTimeoutError, match=words):
            talk(served.endpoint, run, timeout_s=1.0, **given)


def test_a_client_that_insists_on_encryption_sends_no_payload_to_a_worker_that_only_authenticates(
    shm_dir: Path, files: KeyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Served(shm_dir, **WORKER_TCP, **files.server(data_protection="authenticated")) as served:
        monkeypatch.setenv("FOREBAY_LEAST_DATA_PROTECTION", "encrypted")
        with pytest.raises(SettingError, match="got authenticated; limit encrypted"):
            talk(served.endpoint, lambda handle: handle.train_step(payload(7)), **files.client("driver"))
    assert served.engine.trained == []


def test_who_may_not_train_calls_nothing_and_who_may_not_inspect_sees_nothing(
    shm_dir: Path, files: KeyFiles
) -> None:
    with Served(shm_dir, **WORKER_TCP, **files.server()) as served:
        for name in ("stager", "inspector"):
            with pytest.raises(RefusedError, match=f"client '{name}' lacks the right 'train'") as caught:
                talk(served.endpoint, lambda handle: handle.train_step(payload(1)), **files.client(name))
            assert caught.value.code == RefusalCode.NOT_ALLOWED
        for name in ("stager", "driver"):
            with pytest.raises(RefusedError, match=f"client '{name}' lacks the right 'inspect'"):
                talk(served.endpoint, lambda handle: handle.status(), **files.client(name))
        with pytest.raises(RefusedError, match=r"the trainer worker at .* does not know this key"):
            talk(served.endpoint, lambda handle: handle.update(), **files.client("eve"))
        status = talk(served.endpoint, lambda handle: handle.status(), **files.client("inspector"))
        assert status.counters["refused_not_allowed"] >= 4
    assert (served.engine.trained, served.engine.updates) == ([], [])


def test_calls_without_end_that_are_not_allowed_do_not_fill_the_log(
    shm_dir: Path, files: KeyFiles, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(handle: TrainerHandle) -> None:
        for _ in range(30):
            with pytest.raises(RefusedError):
                await handle.status()

    with Served(shm_dir, **WORKER_TCP, **files.server()) as served:
        served.worker._log._limit = LogLimit(count=5, window_s=1e6)  # no new window while the test runs
        talk(served.endpoint, run, **files.client("driver"))
        status = talk(served.endpoint, lambda handle: handle.status(), **files.client("inspector"))
    assert caplog.text.count("refuse code=not_allowed words=client 'driver' lacks the right 'inspect'") == 5
    assert status.counters["refused_not_allowed"] == 30


def test_the_stage_ahead_loop_runs_with_daemon_and_worker_encrypted(
    shm_dir: Path, start_daemon: StartDaemon, files: KeyFiles
) -> None:
    daemon = start_daemon(**DAEMON_TCP, **files.server())
    numbers = list(range(6))

    async def rollouts() -> AsyncIterator[MicroBatch]:
        for number in numbers:
            yield MicroBatch(payload(number, rows=30_000), key=f"k{number}", ends_step=number % 3 == 2)

    async def run() -> list[int]:
        trained: list[int] = []
        handle = TrainerHandle(
            served.endpoint, control_endpoint=daemon.control_endpoint, timeout_s=EVENT_S, **files.client("driver")
        )
        async with handle as trainer, StageAhead(trainer, rollouts()) as ahead:
            async for step in ahead:
                trained += [one.value["number"] async for one in step]
                await trainer.update()
                assert step.metrics()["stage/fallbacks"] == 0
        return trained

    (shm_dir / "worker").mkdir()
    with Served(shm_dir / "worker", Engine(), daemon=daemon, **WORKER_TCP, **files.server()) as served:
        assert asyncio.run(run()) == numbers
    assert served.engine.trained == numbers


def test_a_worker_may_have_another_key_than_the_daemon(
    shm_dir: Path, start_daemon: StartDaemon, files: KeyFiles
) -> None:
    daemon = start_daemon(**DAEMON_TCP, **files.server())
    own = files.server() | {"key_file": str(files.folder / "eve.key_secret")}
    (shm_dir / "worker").mkdir()
    with Served(shm_dir / "worker", daemon=daemon, **WORKER_TCP, **own) as served:
        keys = files.client("driver") | {"worker_key_file": str(files.folder / "eve.key")}

        async def run(handle: TrainerHandle) -> Any:
            await handle.stage(payload(3), key="k")
            return (await handle.train_step(stage_key="k")).value["number"]

        options: dict[str, Any] = {"control_endpoint": daemon.control_endpoint, **keys}
        assert talk(served.endpoint, run, **options) == 3


def test_a_worker_that_others_reach_needs_keys_or_warns(shm_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    everywhere: dict[str, Any] = dict.fromkeys(WORKER_TCP, "tcp://0.0.0.0:*")
    with pytest.raises(SettingError, match="setting worker_endpoint would let everybody in"):
        Served(shm_dir, **everywhere)
    with caplog.at_level(logging.WARNING), Served(shm_dir, **everywhere, insecure=True):
        pass
    told = [record.getMessage() for record in caplog.records if "insecure endpoint=" in record.getMessage()]
    assert len(told) == 2


# --- decisions ---


def test_each_request_needs_its_right() -> None:
    hello, status = Hello(version=4, peer=Peer(name="", pid=1, host="")), GetWorkerStatus()
    cancel = CancelCall(epoch="e", call=CALL.call)
    needed: list[tuple[CallRequest, Right]] = [(CALL, Right.TRAIN), (cancel, Right.TRAIN), (status, Right.INSPECT)]
    for right in Right:
        client = Client("c", frozenset({right}))
        assert lacks_right(client, hello) == ""
        for request, wanted in needed:
            assert (lacks_right(client, request) == "") == (right is wanted)
    assert lacks_right(Client("", frozenset()), hello) != ""


def test_a_call_of_one_client_is_never_anothers_whatever_its_id() -> None:
    first, second = (Client(name, frozenset(Right)) for name in ("a", "b"))
    ids = {own_call(client, CALL).call for client in (first, second)}  # type: ignore[union-attr]
    assert len(ids) == 2
    assert own_call(first, CALL).call == own_call(first, CALL).call  # type: ignore[union-attr]
    cancel = CancelCall(epoch="e", call=CALL.call)
    assert own_call(second, cancel).call != own_call(first, CALL).call  # type: ignore[union-attr]
    assert own_call(Client("", frozenset(Right)), CALL) is CALL
