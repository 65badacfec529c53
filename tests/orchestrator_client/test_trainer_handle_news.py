"""Bad news of a worker, and none; and a trainer that a daemon feeds."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from forebay import (
    BrokenError,
    NotBegunError,
    Refusal,
    RemoteCallError,
    StagingClient,
    TrainerHandle,
)
from forebay.wire import (
    Call,
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
    Raised,
    RefusalCode,
    Refused,
    RefusedError,
    Reset,
    WaitTimeoutError,
    WasReset,
    WorkerState,
)

from .fake_daemon import FakeDaemon, staged
from .fake_worker import (
    PATIENCE_S,
    RETRY_S,
    TREE,
    Answers,
    FakeWorker,
    answering,
    nothing,
    raised,
    refusing,
    returned,
    talk,
)

T = TypeVar("T")


# --- bad news ---


@pytest.mark.parametrize("began", [True, False])
@pytest.mark.parametrize("is_step", [True, False])
def test_what_was_raised_there_is_raised_here(shm_dir: Path, is_step: bool, began: bool) -> None:
    async def run(handle: TrainerHandle) -> None:
        with pytest.raises(RemoteCallError) as caught:
            await (handle.train_step(stage_key="k") if is_step else handle.update())
        error = caught.value
        assert isinstance(error, NotBegunError) == (not began), "whatever the method"
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
            with pytest.raises(BrokenError, match=r"was restarted; whether .* had run is not known") as caught:
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
            words = r"timed out after \d+\.\d s waiting for the answer to"
            with pytest.raises(WaitTimeoutError, match=words) as caught:
                await call
            assert worker.endpoint in str(caught.value)
            assert "TrainerHandle.status; or give it more time (timeout_s)" in str(caught.value)

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

    before = set(threading.enumerate())
    with FakeWorker(shm_dir) as worker:
        talk(worker.endpoint, run)
        [cancel] = worker.wait_for(CancelCall)
        assert cancel.call == worker.of_kind(Call)[0].call
    for thread in set(threading.enumerate()) - before:
        # It may have said that it is done, and be on its way out.
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), thread


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
        tasks = [asyncio.create_task(call) for call in calls]
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
    words = rf"no daemon answered at control_endpoint ipc://{shm_dir}/nobody"
    with FakeWorker(shm_dir, is_fed=True) as worker, pytest.raises(WaitTimeoutError, match=words):
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
