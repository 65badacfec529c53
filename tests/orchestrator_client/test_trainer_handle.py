"""What a handle says to a worker, and what it makes of answers that come late, wrongly or to others."""

from __future__ import annotations

import asyncio
import gc
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay import (
    BrokenError,
    ClosedError,
    StagingClient,
    Trained,
    TrainerHandle,
)
from forebay.sockets import make_key_files
from forebay.wire import (
    PROTOCOL_VERSION,
    Call,
    CallReply,
    CallRequest,
    CallState,
    CancelCall,
    GetWorkerStatus,
    Hello,
    InProgress,
    Peer,
    ProtocolError,
    RefusalCode,
    Refused,
    SettingError,
    TreeError,
    VersionMismatchError,
    WaitTimeoutError,
    WorkerState,
    WorkerStatus,
    decode_manifest,
    default_registry,
    unpack,
)

from .fake_daemon import FakeDaemon
from .fake_worker import (
    LIMITS,
    PATIENCE_S,
    TREE,
    Answers,
    FakeWorker,
    answering,
    grant_of,
    handle_to,
    nothing,
    refusing,
    returned,
    talk,
)

# --- its making ---


def test_keys_for_the_worker_alone_are_an_error_that_leaves_nothing_open(tmp_path: Path) -> None:
    public, secret = make_key_files(tmp_path, "own")
    with warnings.catch_warnings(record=True) as left:
        # Raised where an object is let go, they would reach nobody.
        warnings.simplefilter("always")
        with pytest.raises(SettingError, match="setting server_key_file"):
            TrainerHandle(client_key_file=str(secret), worker_key_file=str(public))
        gc.collect()
    assert [str(each.message) for each in left] == []


# --- the hello ---


@pytest.mark.parametrize("silence_s", [0.05])
def test_without_a_trainer_the_error_names_address_setting_variable_and_time(
    shm_dir: Path, silence_s: float
) -> None:
    endpoint = f"ipc://{shm_dir}/nobody"
    with pytest.raises(WaitTimeoutError) as caught:
        talk(endpoint, nothing, timeout_s=0.3, silence_s=silence_s)
    for word in (f"worker_endpoint {endpoint}", "FOREBAY_WORKER_ENDPOINT", "0.3 s", "forebay.TrainerWorker"):
        assert word in str(caught.value)
    assert isinstance(caught.value, TimeoutError)


@pytest.mark.parametrize("endpoint", ["nonsense", "tcp://", "ipc://" + "x" * 200])
def test_what_is_no_address_is_an_error_that_names_it_and_the_setting(endpoint: str) -> None:
    with pytest.raises(BrokenError if endpoint == "tcp://" else SettingError) as caught:
        talk(endpoint, nothing)
    assert "worker_endpoint" in str(caught.value)
    assert endpoint.removeprefix("ipc://")[:50] in str(caught.value)


@pytest.mark.parametrize("is_refused", [True, False])
def test_another_version_is_an_error_that_names_both(shm_dir: Path, is_refused: bool) -> None:
    def handle(request: CallRequest) -> Answers:
        if is_refused:
            return [Refused(id=request.id, code=RefusalCode.VERSION, words="no", version=77)]
        return [worker.welcome_to(request, version=77)]

    words = r"trainer worker at .* speaks another protocol version"
    with FakeWorker(shm_dir, handle) as worker, pytest.raises(VersionMismatchError, match=words) as got:
        talk(worker.endpoint, nothing)
    assert (got.value.got, got.value.limit) == (77, PROTOCOL_VERSION)


def test_a_daemon_in_the_place_of_the_worker_is_told_apart_at_once(shm_dir: Path) -> None:
    with FakeDaemon(shm_dir, lambda _: None) as daemon, pytest.raises(ProtocolError) as caught:
        talk(daemon.endpoint, nothing)
    for word in (f"worker_endpoint {daemon.endpoint} is no trainer worker", "FOREBAY_WORKER_ENDPOINT"):
        assert word in str(caught.value)


def test_a_worker_in_the_place_of_the_daemon_is_told_apart_at_once(shm_dir: Path) -> None:
    async def run() -> None:
        async with StagingClient(worker.endpoint, timeout_s=PATIENCE_S):
            pass

    with FakeWorker(shm_dir) as worker, pytest.raises(ProtocolError) as caught:
        asyncio.run(run())
    for word in (f"control_endpoint {worker.endpoint} is no daemon", "FOREBAY_CONTROL_ENDPOINT"):
        assert word in str(caught.value)


def test_somebody_else_in_the_place_of_the_worker_is_told_apart_at_once(shm_dir: Path) -> None:
    worker = FakeWorker(shm_dir, lambda _: [b"\x1b[31mwho are you?"])
    with worker, pytest.raises(ProtocolError, match="is no trainer worker") as caught:
        talk(worker.endpoint, nothing)
    assert str(caught.value).isprintable()


def test_a_hello_without_an_answer_is_repeated_and_says_who_asks(shm_dir: Path) -> None:
    def handle(_: CallRequest) -> Answers:
        return None if len(worker.requests) > 3 else []

    with FakeWorker(shm_dir, handle) as worker:
        talk(worker.endpoint, nothing, name="me")
        hellos = worker.of_kind(Hello)
    assert len(hellos) == 4
    assert {(hello.version, hello.peer.name, hello.peer.pid) for hello in hellos} == {
        (PROTOCOL_VERSION, "me", os.getpid())
    }


def test_a_handle_says_what_the_worker_has(shm_dir: Path) -> None:
    async def look(handle: TrainerHandle) -> None:
        assert handle.methods == ("fwd_bwd", "update")
        assert not handle.stages
        assert repr(handle) == f"TrainerHandle({worker.endpoint!r}, StagingClient('ipc://nowhere'))"

    with FakeWorker(shm_dir) as worker:
        talk(worker.endpoint, look, control_endpoint="ipc://nowhere")


def test_a_handle_outside_of_its_block_says_so(shm_dir: Path) -> None:
    async def run() -> None:
        handle = handle_to(f"ipc://{shm_dir}/nobody")
        for call in (lambda: handle.update(), lambda: handle.train_step(TREE), handle.status):
            with pytest.raises(ClosedError, match="async with"):
                await call()
        await handle.close()
        await handle.close()

    asyncio.run(run())


def test_a_closed_handle_says_so(shm_dir: Path) -> None:
    async def run() -> None:
        async with handle_to(worker.endpoint) as handle:
            pass
        for call in (lambda: handle.update(), lambda: handle.train_step(TREE), handle.status):
            with pytest.raises(ClosedError, match="closed"):
                await call()

    with FakeWorker(shm_dir) as worker:
        asyncio.run(run())


def test_a_handle_that_is_closed_meanwhile_takes_its_calls_back(shm_dir: Path) -> None:
    async def run() -> None:
        async with handle_to(worker.endpoint) as handle:
            tasks = [asyncio.create_task(handle.update()) for _ in range(3)]
            await asyncio.to_thread(worker.wait_for, Call, 3)
        for task in tasks:
            with pytest.raises(ClosedError, match="the answer to update was awaited"):
                await task

    with FakeWorker(shm_dir) as worker:
        asyncio.run(run())
        cancels = worker.wait_for(CancelCall, 3)
    assert {cancel.call.number for cancel in cancels} == {1, 2, 3}


# --- what is said ---


def test_a_call_has_the_workers_run_an_id_of_its_own_and_its_options(shm_dir: Path) -> None:
    async def run(handle: TrainerHandle) -> None:
        for number in range(3):
            await handle.call("mine", n=number, name="text")

    with FakeWorker(shm_dir, answering(returned), epoch="this run") as worker:
        talk(worker.endpoint, run)
        talk(worker.endpoint, run)
        calls = worker.of_kind(Call)
    assert {(call.epoch, call.method, call.payload) for call in calls} == {("this run", "mine", b"")}
    assert [call.call.number for call in calls] == [1, 2, 3] * 2
    assert len({call.call.client for call in calls}) == 2
    options = [unpack(call.options, registry=default_registry, limits=LIMITS) for call in calls]
    assert options == [{"n": number, "name": "text"} for number in range(3)] * 2


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ({"stage_key": "k"}, {"stage_key": "k", "stage_timeout_s": 7.0}),
        ({"stage_key": "k", "stage_timeout_s": 1.0, "a": 2}, {"stage_key": "k", "stage_timeout_s": 1.0, "a": 2}),
        ({"payload": TREE, "a": 2}, {"a": 2}),
        ({"payload": TREE, "stage_key": "k"}, {"stage_key": "k", "stage_timeout_s": 7.0}),
    ],
)
def test_a_step_says_which_micro_batch_and_how_long_to_wait_for_it(
    shm_dir: Path, arguments: dict[str, Any], options: dict[str, Any]
) -> None:
    def answer(call: Call) -> CallReply:
        return returned(call, 5, has_times=True)

    with FakeWorker(shm_dir, answering(answer)) as worker:
        trained = talk(worker.endpoint, lambda handle: handle.train_step(**arguments), lend_timeout_s=7.0)
        [call] = worker.of_kind(Call)
    assert call.method == "fwd_bwd"
    assert unpack(call.options, registry=default_registry, limits=LIMITS) == options
    assert bool(call.payload) == ("payload" in arguments)
    assert trained == Trained(
        key="k", value=5, source="staged", wait_s=1.0, dispatch_s=2.0, ready_s=3.0, idle_s=4.0
    )


def test_a_payload_is_described_in_the_call_and_sent_in_chunks_when_it_is_granted(shm_dir: Path) -> None:
    def handle(request: CallRequest) -> Answers:
        if isinstance(request, Call) and len(worker.chunks) == 5:
            return [InProgress(id=request.id, state=CallState.RUNNING), returned(request)]
        return None

    with FakeWorker(shm_dir, handle) as worker:
        talk(worker.endpoint, lambda handle: handle.call("mine", TREE))
        manifest = decode_manifest(worker.of_kind(Call)[0].payload, LIMITS)
        chunks = list(worker.chunks)
    assert manifest.payload_bytes == 20_000
    assert sorted((chunk.span, chunk.slot, chunk.token) for chunk in chunks) == [(span, 1, 7) for span in range(5)]


def test_nothing_is_sent_before_it_is_granted(shm_dir: Path) -> None:
    def handle(request: CallRequest) -> Answers:
        if not isinstance(request, Call):
            return None
        return [] if len(worker.of_kind(Call)) < 4 else [returned(request)]

    with FakeWorker(shm_dir, handle) as worker:
        talk(worker.endpoint, lambda handle: handle.call("mine", TREE))
        assert worker.chunks == []


def test_a_grant_with_another_token_has_all_of_it_sent_again(shm_dir: Path) -> None:
    def handle(request: CallRequest) -> Answers:
        if not isinstance(request, Call):
            return None
        count = len(worker.of_kind(Call))
        return [grant_of(request, token=count)] if count < 3 else [returned(request)]

    with FakeWorker(shm_dir, handle) as worker:
        talk(worker.endpoint, lambda handle: handle.call("mine", TREE), retry_s=0.3)
        sent = sorted((chunk.token, chunk.span) for chunk in worker.chunks)
    assert sent == [(token, span) for token in (1, 2) for span in range(5)]


@pytest.mark.parametrize("size", [65 << 10, 2 << 20])
def test_options_that_are_too_large_are_the_callers_error_and_nothing_is_sent(shm_dir: Path, size: int) -> None:
    async def run(handle: TrainerHandle) -> None:
        for option in (np.zeros(size, np.uint8), "x" * size):
            with pytest.raises(TreeError, match=r"too large|larger than"):
                await handle.call("mine", option=option)

    with FakeWorker(shm_dir) as worker:
        talk(worker.endpoint, run)
        assert worker.of_kind(Call) == []


# --- answers ---


def test_an_answer_that_is_lost_is_asked_for_again_with_the_same_id(shm_dir: Path) -> None:
    def handle(request: CallRequest) -> Answers:
        if not isinstance(request, Call):
            return None
        return [returned(request, "done")] if len(worker.of_kind(Call)) > 5 else []

    with FakeWorker(shm_dir, handle) as worker:
        assert talk(worker.endpoint, lambda handle: handle.update()) == "done"
        calls = worker.of_kind(Call)
        assert worker.of_kind(CancelCall) == []
    assert len(calls) == 6
    assert len({(call.id, call.call, call.options.manifest) for call in calls}) == 1


def test_progress_is_no_answer(shm_dir: Path) -> None:
    def handle(request: CallRequest) -> Answers:
        if not isinstance(request, Call):
            return None
        progress = [InProgress(id=request.id, state=state) for state in (CallState.QUEUED, CallState.RUNNING)]
        return [*progress, returned(request, 3)] if len(worker.of_kind(Call)) > 3 else progress

    with FakeWorker(shm_dir, handle) as worker:
        assert talk(worker.endpoint, lambda handle: handle.update()) == 3


def test_garbage_and_answers_to_nobody_are_passed_over(shm_dir: Path) -> None:
    def stray(call: Call) -> CallReply:
        return refusing(RefusalCode.DRAINING)(Call(**_fields(call) | {"id": call.id + 1000}))

    with FakeWorker(
        shm_dir, answering(lambda _: b"\xff garbage", lambda _: b"", stray, lambda call: returned(call, 3))
    ) as worker:
        assert talk(worker.endpoint, lambda handle: handle.update()) == 3


def _fields(call: Call) -> dict[str, Any]:
    return {name: getattr(call, name) for name in ("id", "epoch", "call", "method", "options", "payload")}


def test_an_answer_of_another_kind_is_an_error(shm_dir: Path) -> None:
    def status(call: Call) -> WorkerStatus:
        return WorkerStatus(
            id=call.id,
            software="",
            epoch="",
            peer=Peer(name="", pid=1, host=""),
            uptime_s=0,
            mode="",
            state=WorkerState.READY,
            failure="",
            draining=False,
            calls=(),
            counters={},
        )

    async def run(handle: TrainerHandle) -> None:
        with pytest.raises(ProtocolError, match="update was answered with something else; got WorkerStatus"):
            await handle.update()

    with FakeWorker(shm_dir, answering(status)) as worker:
        talk(worker.endpoint, run)


def test_a_step_without_times_is_an_error(shm_dir: Path) -> None:
    async def run(handle: TrainerHandle) -> None:
        with pytest.raises(ProtocolError, match="the answer to a step has no times"):
            await handle.train_step(TREE)

    with FakeWorker(shm_dir, answering(lambda call: returned(call, 3))) as worker:
        talk(worker.endpoint, run)


def test_a_status_that_is_none_is_an_error(shm_dir: Path) -> None:
    def handle(request: CallRequest) -> Answers:
        if not isinstance(request, GetWorkerStatus):
            return None
        return [returned(request)]

    async def run(handle: TrainerHandle) -> None:
        with pytest.raises(ProtocolError, match="status was answered with something else; got Returned"):
            await handle.status()

    with FakeWorker(shm_dir, handle) as worker:
        talk(worker.endpoint, run)


def test_what_was_omitted_is_none_with_the_reason(shm_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    def answer(call: Call) -> CallReply:
        return returned(call, omitted="too large", has_times=True)

    async def run(handle: TrainerHandle) -> None:
        trained = await handle.train_step(TREE)
        assert (trained.value, trained.omitted) == (None, "too large")
        assert await handle.update() is None

    with FakeWorker(shm_dir, answering(answer)) as worker:
        talk(worker.endpoint, run)
    assert [record.getMessage() for record in caplog.records] == ["answer_omitted method=update reason=too large"]
