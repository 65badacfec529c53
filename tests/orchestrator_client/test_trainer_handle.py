"""What a handle makes of a worker that answers late, wrongly, with bad news, or not at all."""

from __future__ import annotations

import asyncio
import copy
import os
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from forebay import (
    BrokenError,
    ClosedError,
    NotBegunError,
    Refusal,
    RemoteCallError,
    StagingClient,
    Trained,
    TrainerHandle,
)
from forebay.wire import (
    PROTOCOL_VERSION,
    Call,
    CallReply,
    CallRequest,
    CallState,
    CancelCall,
    ControlReply,
    ControlRequest,
    GetWorkerStatus,
    Goodbye,
    Hello,
    InProgress,
    Offer,
    Peer,
    ProtocolError,
    Raised,
    RefusalCode,
    Refused,
    RefusedError,
    Reset,
    TreeError,
    VersionMismatchError,
    WaitTimeoutError,
    WasReset,
    WorkerState,
    WorkerStatus,
    decode_manifest,
    default_registry,
    unpack,
)

from .fake_daemon import FakeDaemon, staged
from .fake_worker import LIMITS, PATIENCE_S, FakeWorker, grant_of, returned

T = TypeVar("T")
RETRY_S = 0.05
TREE = {"x": np.arange(5000, dtype=np.int32)}
Answers = Iterable[CallReply | bytes] | None


def handle_to(endpoint: str, **options: Any) -> TrainerHandle:
    return TrainerHandle(endpoint, **{"retry_s": RETRY_S, "timeout_s": PATIENCE_S, **options})


def talk(endpoint: str, what: Callable[[TrainerHandle], Awaitable[T]], **options: Any) -> T:
    async def run() -> T:
        async with handle_to(endpoint, **options) as handle:
            return await what(handle)

    return asyncio.run(run())


async def nothing(_: TrainerHandle) -> None:
    pass


def answering(*answers: Callable[[Call], CallReply | bytes]) -> Callable[[CallRequest], Answers]:
    """Answers each call, and all else as usual."""

    def handle(request: CallRequest) -> Answers:
        return [answer(request) for answer in answers] if isinstance(request, Call) else None

    return handle


def raised(call: Call, *, began: bool = True, **more: Any) -> Raised:
    fields: dict[str, Any] = {
        "kind": "KeyError",
        "words": "KeyError: 'x'",
        "traceback": "Traceback: here\n  there",
    }
    return Raised(id=call.id, began=began, state=WorkerState.FAILED, **(fields | more))


def refusing(code: RefusalCode, words: str = "because") -> Callable[[Call], Refused]:
    return lambda call: Refused(id=call.id, code=code, words=words)


# --- the hello ---


@pytest.mark.parametrize("silence_s", [30.0, 0.05])
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
    with pytest.raises(BrokenError) as caught:
        talk(endpoint, nothing)
    assert "worker_endpoint" in str(caught.value)
    assert endpoint[:50] in str(caught.value)


@pytest.mark.parametrize("is_refused", [True, False])
def test_another_version_is_an_error_that_names_both(shm_dir: Path, is_refused: bool) -> None:
    def handle(request: CallRequest) -> Answers:
        if is_refused:
            return [Refused(id=request.id, code=RefusalCode.VERSION, words="no", version=77)]
        return [worker.welcome_to(request, version=77)]

    with FakeWorker(shm_dir, handle) as worker:
        with pytest.raises(
            VersionMismatchError, match="trainer worker at .* speaks another protocol version"
        ) as got:
            talk(worker.endpoint, nothing)
    assert (got.value.got, got.value.limit) == (77, PROTOCOL_VERSION)


def test_a_daemon_in_the_place_of_the_worker_is_told_apart_at_once(shm_dir: Path) -> None:
    with FakeDaemon(shm_dir, lambda _: None) as daemon:
        with pytest.raises(ProtocolError) as caught:
            talk(daemon.endpoint, nothing)
    for word in (f"worker_endpoint {daemon.endpoint} is no trainer worker", "FOREBAY_WORKER_ENDPOINT"):
        assert word in str(caught.value)


def test_a_worker_in_the_place_of_the_daemon_is_told_apart_at_once(shm_dir: Path) -> None:
    async def run() -> None:
        async with StagingClient(worker.endpoint, timeout_s=PATIENCE_S):
            pass

    with FakeWorker(shm_dir) as worker:
        with pytest.raises(ProtocolError) as caught:
            asyncio.run(run())
    for word in (f"control_endpoint {worker.endpoint} is no daemon", "FOREBAY_CONTROL_ENDPOINT"):
        assert word in str(caught.value)


def test_somebody_else_in_the_place_of_the_worker_is_told_apart_at_once(shm_dir: Path) -> None:
    with FakeWorker(shm_dir, lambda _: [b"\x1b[31mwho are you?"]) as worker:
        with pytest.raises(ProtocolError, match="is no trainer worker") as caught:
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
            with pytest.raises(TreeError, match="too large|larger than"):
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

    with FakeWorker(shm_dir, answering(status)) as worker:
        with pytest.raises(ProtocolError, match="update was answered with something else; got WorkerStatus"):
            talk(worker.endpoint, lambda handle: handle.update())
    with FakeWorker(shm_dir, answering(lambda call: returned(call, 3))) as worker:
        with pytest.raises(ProtocolError, match="the answer to a step has no times"):
            talk(worker.endpoint, lambda handle: handle.train_step(TREE))


def test_a_status_that_is_none_is_an_error(shm_dir: Path) -> None:
    def handle(request: CallRequest) -> Answers:
        if not isinstance(request, GetWorkerStatus):
            return None
        return [returned(request)]

    with FakeWorker(shm_dir, handle) as worker:
        with pytest.raises(ProtocolError, match="status was answered with something else; got Returned"):
            talk(worker.endpoint, lambda handle: handle.status())


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


# --- bad news ---


@pytest.mark.parametrize("began", [True, False])
@pytest.mark.parametrize("is_step", [True, False])
def test_what_was_raised_there_is_raised_here(shm_dir: Path, is_step: bool, began: bool) -> None:
    async def run(handle: TrainerHandle) -> None:
        with pytest.raises(RemoteCallError) as caught:
            await (handle.train_step(stage_key="k") if is_step else handle.update())
        error = caught.value
        assert isinstance(error, NotBegunError) == (is_step and not began)
        method = "fwd_bwd" if is_step else "update"
        assert str(error) == f"{method} raised in the trainer's worker, which is failed: KeyError: 'x'"
        assert (error.method, error.kind, error.words) == (method, "KeyError", "KeyError: 'x'")
        assert (error.traceback, error.state) == ("Traceback: here\n  there", "failed")
        assert error.__notes__ == ["the worker's own traceback:\nTraceback: here\n  there"]

    with FakeWorker(shm_dir, answering(lambda call: raised(call, began=began))) as worker:
        talk(worker.endpoint, run)
        assert worker.of_kind(CancelCall) == []


@pytest.mark.parametrize("kind", [RemoteCallError, NotBegunError])
def test_a_remote_error_can_be_copied_to_another_process(kind: type[RemoteCallError]) -> None:
    news = Raised(id=1, kind="E", words="w", traceback="t", began=True, state=WorkerState.READY)
    error = kind("mine", news)
    for other in (copy.copy(error), copy.deepcopy(error)):
        assert type(other) is kind
        assert (str(other), other.__notes__) == (str(error), error.__notes__)
        assert (other.method, other.kind, other.traceback, other.state) == ("mine", "E", "t", "ready")


def test_a_remote_error_cannot_drive_a_terminal() -> None:
    news = Raised(id=1, kind="E", words="\x1b[31m", traceback="a\n\x1b[2J\nb", began=True, state=WorkerState.READY)
    error = RemoteCallError("mine", news)
    assert "\x1b" not in str(error)
    assert "\x1b" not in "".join(error.__notes__)


@pytest.mark.parametrize("code", [RefusalCode.DRAINING, RefusalCode.UNKNOWN_METHOD, RefusalCode.FORGOTTEN])
def test_a_refused_call_is_an_error_with_code_method_and_words(shm_dir: Path, code: RefusalCode) -> None:
    with FakeWorker(shm_dir, answering(refusing(code))) as worker:
        with pytest.raises(RefusedError, match=rf"refused \({code}\): update: because") as caught:
            talk(worker.endpoint, lambda handle: handle.update())
        assert worker.of_kind(CancelCall) == []
    assert caught.value.code == code


def test_a_refused_call_that_was_repeated_is_taken_back(shm_dir: Path) -> None:
    def handle(request: CallRequest) -> Answers:
        if not isinstance(request, Call):
            return None
        return [] if len(worker.of_kind(Call)) == 1 else [refusing(RefusalCode.TOO_MANY_OFFERS)(request)]

    with FakeWorker(shm_dir, handle) as worker:
        with pytest.raises(RefusedError):
            talk(worker.endpoint, lambda handle: handle.update())
        [cancel] = worker.wait_for(CancelCall)
        assert cancel.call == worker.of_kind(Call)[0].call


def test_a_worker_that_was_restarted_is_greeted_and_the_next_call_is_for_it(shm_dir: Path) -> None:
    def handle(request: CallRequest) -> Answers:
        if not isinstance(request, Call):
            return None
        if request.epoch != worker.welcome["epoch"]:
            return [refusing(RefusalCode.OTHER_RUN)(request)]
        return [returned(request, request.epoch)]

    async def run(handle: TrainerHandle) -> None:
        assert await handle.update() == "first"
        worker.welcome["epoch"] = "second"
        for call in (handle.update(), handle.train_step(TREE)):
            with pytest.raises(BrokenError, match="was restarted; whether .* had run is not known") as caught:
                await call
            assert "restore the trainer's state" in str(caught.value)
            assert await handle.update() == worker.welcome["epoch"]
            worker.welcome["epoch"] = "third"

    with FakeWorker(shm_dir, handle, epoch="first") as worker:
        talk(worker.endpoint, run)
        assert len(worker.of_kind(Hello)) == 3


def test_a_call_that_times_out_says_what_it_waited_for_and_is_taken_back(shm_dir: Path) -> None:
    async def run(handle: TrainerHandle) -> None:
        for call in (handle.update(timeout_s=0.2), handle.train_step(TREE, timeout_s=0.2)):
            with pytest.raises(WaitTimeoutError, match="timed out waiting for the answer to") as caught:
                await call
            assert worker.endpoint in str(caught.value)
            assert "TrainerHandle.status" in str(caught.value)

    with FakeWorker(shm_dir) as worker:
        talk(worker.endpoint, run)
        cancels = worker.wait_for(CancelCall, 2)
        assert [cancel.call.number for cancel in cancels] == [1, 2]
        assert {cancel.epoch for cancel in cancels} == {"epoch"}


def test_a_cancelled_call_is_taken_back(shm_dir: Path) -> None:
    async def run(handle: TrainerHandle) -> None:
        task = asyncio.create_task(handle.train_step(TREE))
        await asyncio.to_thread(worker.wait_for, Call)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = threading.active_count()
    with FakeWorker(shm_dir) as worker:
        talk(worker.endpoint, run)
        [cancel] = worker.wait_for(CancelCall)
        assert cancel.call == worker.of_kind(Call)[0].call
    assert threading.active_count() <= before + 1, "asyncio's own"


def test_a_call_whose_on_sent_raises_is_taken_back(shm_dir: Path) -> None:
    def boom() -> None:
        raise RuntimeError("boom")

    with FakeWorker(shm_dir, answering(lambda call: InProgress(id=call.id, state=CallState.QUEUED))) as worker:
        with pytest.raises(RuntimeError, match="boom"):
            talk(worker.endpoint, lambda handle: handle.train_step(TREE, on_sent=boom))
        worker.wait_for(CancelCall)


def test_a_goodbye_ends_every_call_at_once(shm_dir: Path) -> None:
    async def run(handle: TrainerHandle) -> list[Any]:
        calls = [handle.update(), handle.train_step(TREE), handle.status()]
        tasks = [asyncio.create_task(call) for call in calls]  # type: ignore[arg-type]
        await asyncio.to_thread(worker.wait_for, Call, 2)
        await asyncio.to_thread(worker.wait_for, GetWorkerStatus)
        worker.say(Goodbye(kept=False))
        return await asyncio.gather(*tasks, return_exceptions=True)

    with FakeWorker(shm_dir) as worker:
        for end in talk(worker.endpoint, run, retry_s=PATIENCE_S):
            assert isinstance(end, BrokenError)
            assert f"the trainer worker at {worker.endpoint} stopped" in str(end)
            assert "start the trainer" in str(end)


# --- silence ---


def test_a_worker_that_falls_silent_is_gone_after_a_while_and_then_after_one_repeat(shm_dir: Path) -> None:
    async def run(handle: TrainerHandle) -> None:
        with pytest.raises(
            BrokenError, match=r"no word from the trainer worker at .* for .* s; still awaited"
        ) as first:
            await handle.update()
        assert not isinstance(first.value, TimeoutError)
        sent = len(worker.of_kind(Call))
        assert sent >= 0.5 / RETRY_S
        with pytest.raises(BrokenError, match="no word from"):
            await handle.update()
        assert len(worker.of_kind(Call)) == sent + 2
        with pytest.raises(BrokenError, match="the worker's status"):
            await handle.status()
        # A word of it, and it is there again, with all of its time.
        worker.handle = answering(lambda call: returned(call, 3))
        assert await handle.update() == 3
        worker.handle = lambda _: []
        sent = len(worker.of_kind(Call))
        with pytest.raises(BrokenError):
            await handle.update()
        assert len(worker.of_kind(Call)) >= sent + 0.5 / RETRY_S

    with FakeWorker(shm_dir) as worker:
        talk(worker.endpoint, run, silence_s=0.5)


def test_a_worker_that_says_that_it_goes_on_is_not_silent(shm_dir: Path) -> None:
    def handle(request: CallRequest) -> Answers:
        if not isinstance(request, Call):
            return None
        if len(worker.of_kind(Call)) > 30:
            return [returned(request, 3)]
        return [InProgress(id=request.id, state=CallState.RUNNING)]

    with FakeWorker(shm_dir, handle) as worker:
        assert talk(worker.endpoint, lambda handle: handle.update(), silence_s=0.3) == 3


def test_a_word_to_anybody_is_a_word(shm_dir: Path) -> None:
    def handle(request: CallRequest) -> Answers:
        if isinstance(request, Call) and request.method == "update":
            return [returned(request, 3)] if len(worker.of_kind(GetWorkerStatus)) > 20 else []
        return [InProgress(id=request.id, state=CallState.RUNNING)] if isinstance(request, Call) else None

    async def run(handle: TrainerHandle) -> None:
        other = asyncio.create_task(handle.call("other"))
        assert await handle.update() == 3
        other.cancel()

    def count(request: CallRequest) -> Answers:
        if isinstance(request, Call) and request.method == "update" and len(worker.of_kind(Call)) > 40:
            return [returned(request, 3)]
        return handle(request)

    with FakeWorker(shm_dir, count) as worker:
        talk(worker.endpoint, run, silence_s=0.3)


def test_a_long_wait_for_a_micro_batch_is_not_cut_by_silence(shm_dir: Path) -> None:
    def handle(_: ControlRequest) -> None:
        return None

    async def run() -> None:
        async with StagingClient(daemon.endpoint, retry_s=RETRY_S, silence_s=0.1) as client:
            with pytest.raises(WaitTimeoutError, match="'k' to be consumed"):
                await client.wait("k", timeout_s=1.0)
            with pytest.raises(BrokenError, match="no word from the daemon"):
                await client.status()

    with FakeDaemon(shm_dir, handle) as daemon:
        asyncio.run(run())


# --- staging ---


class Host:
    """A worker that is fed, and its daemon."""

    def __init__(self, folder: Path, daemon: Callable[[ControlRequest], Iterable[ControlReply] | None]) -> None:
        self.worker = FakeWorker(folder, answering(returned), is_fed=True)
        self.daemon = FakeDaemon(folder, daemon)

    def talk(self, what: Callable[[TrainerHandle], Awaitable[T]], **options: Any) -> T:
        with self.worker, self.daemon:
            return talk(self.worker.endpoint, what, control_endpoint=self.daemon.endpoint, **options)


def test_a_trainer_that_is_fed_stages_with_its_daemon(shm_dir: Path) -> None:
    async def run(handle: TrainerHandle) -> None:
        assert handle.stages
        keys = [await handle.stage(TREE, key="k"), *[await handle.stage(TREE) for _ in range(3)]]
        assert keys[0] == "k"
        assert len(set(keys)) == 4

    host = Host(shm_dir, lambda request: [staged(request)] if isinstance(request, Offer) else None)
    host.talk(run, queue="mine")
    assert {offer.queue for offer in host.daemon.of_kind(Offer)} == {"mine"}
    assert host.worker.of_kind(Call) == []


def test_a_refused_staging_is_a_refusal(shm_dir: Path) -> None:
    def refuse(request: ControlRequest) -> Iterable[ControlReply] | None:
        return (
            [Refused(id=request.id, code=RefusalCode.NO_SLOT, words="all are lent")]
            if isinstance(request, Offer)
            else None
        )

    host = Host(shm_dir, refuse)
    assert host.talk(lambda handle: handle.stage(TREE, key="k")) == Refusal(
        "k", RefusalCode.NO_SLOT, "all are lent"
    )


def test_a_trainer_that_is_fed_needs_its_daemon(shm_dir: Path) -> None:
    with FakeWorker(shm_dir, is_fed=True) as worker:
        with pytest.raises(WaitTimeoutError, match="no daemon answered at control_endpoint ipc://.*/nobody"):
            talk(worker.endpoint, nothing, control_endpoint=f"ipc://{shm_dir}/nobody", timeout_s=0.3)


def test_a_reset_drops_what_the_daemon_and_what_the_trainer_holds(shm_dir: Path) -> None:
    host = Host(
        shm_dir, lambda request: [WasReset(id=request.id, dropped=2)] if isinstance(request, Reset) else None
    )
    host.talk(lambda handle: handle.reset_staged(), queue="mine")
    assert [reset.queue for reset in host.daemon.of_kind(Reset)] == ["mine"]
    assert {call.method for call in host.worker.of_kind(Call)} == {"reset_staged"}


def test_a_reset_that_the_daemon_does_not_answer_reaches_the_trainer_and_is_an_error(shm_dir: Path) -> None:
    async def run(handle: TrainerHandle) -> None:
        with pytest.raises(BrokenError, match="the reset of queue 'train'"):
            await handle.reset_staged()

    host = Host(shm_dir, lambda _: None)
    host.talk(run, silence_s=0.2)
    assert {call.method for call in host.worker.of_kind(Call)} == {"reset_staged"}
