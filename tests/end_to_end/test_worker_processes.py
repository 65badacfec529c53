"""Workers as processes of their own: killed, stopped, terminated and interrupted while a step runs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forebay import BrokenError, TrainerHandle
from forebay.wire import Message

from .processes import EVENT_S, Party
from .served import handle_to, payload, see, talk

SCRIPT = Path(__file__).with_name("worker_party.py")
Start = Callable[..., Party]


@pytest.fixture
def start(shm_dir: Path) -> Iterator[Start]:
    """Starts workers that have one address; all are gone when the test is over."""
    workers: list[Party] = []

    def start_one(*options: str) -> Party:
        workers.append(Party(str(shm_dir), *options, script=SCRIPT))
        workers[-1].until("serving")
        return workers[-1]

    yield start_one
    for worker in workers:
        worker.close()


def endpoint_in(folder: Path) -> str:
    return f"ipc://{folder}/worker.sock"


async def begun(worker: Party, handle: TrainerHandle, number: int) -> asyncio.Task[int]:
    """Has a worker begin a step."""

    async def step() -> int:
        trained = await handle.train_step(payload(number))
        return int(trained.value["number"])

    task = asyncio.create_task(step())
    await asyncio.to_thread(worker.until, "training", number=number)
    return task


async def repeated(handle: TrainerHandle, count: int) -> None:
    """Waits until the one call under way was repeated so often since now."""
    link, repeats = handle._link, asyncio.Semaphore(0)
    [exchange] = link._exchanges.values()
    send = link.send

    def counted(request: Message) -> None:
        send(request)
        if request is exchange.request:
            repeats.release()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link, "send", counted)
        try:
            async with asyncio.timeout(EVENT_S):
                for _ in range(count):
                    await repeats.acquire()
        except TimeoutError:
            pytest.fail(f"the call was not repeated {count} times within {EVENT_S} s")


def test_of_a_worker_that_was_killed_the_caller_hears_when_another_comes_or_after_a_silence(
    shm_dir: Path, start: Start
) -> None:
    async def run(handle: TrainerHandle) -> None:
        task = await begun(first, handle, 1)
        await asyncio.to_thread(first.kill)
        await repeated(handle, 3)
        assert not task.done(), "it may be slow, or come back"
        second = await asyncio.to_thread(start)
        with pytest.raises(BrokenError, match="was restarted; whether fwd_bwd had run is not known"):
            await task
        task = await begun(second, handle, 2)
        second.go_on()
        assert await task == 2
        assert await handle.update() == [2], "what was meant for the first is not trained by the second"
        async with handle_to(handle._link.endpoint, silence_s=0.5) as impatient:
            task = await begun(second, impatient, 3)
            await asyncio.to_thread(second.kill)
            with pytest.raises(
                BrokenError, match=r"no word from the trainer worker at .* s; still awaited: the ans"
            ):
                await task

    first = start()
    talk(endpoint_in(shm_dir), run)


def test_a_worker_that_stands_still_for_less_than_the_silence_changes_nothing_and_sigterm_ends_it_in_order(
    shm_dir: Path, start: Start
) -> None:
    async def run(handle: TrainerHandle) -> None:
        task = await begun(worker, handle, 1)
        worker.process.send_signal(signal.SIGSTOP)
        await repeated(handle, 5)
        assert not task.done()
        worker.process.send_signal(signal.SIGCONT)
        assert (await handle.status()).state == "ready"
        worker.process.send_signal(signal.SIGTERM)
        await see(handle, lambda status: status.draining, "the drain")
        assert not task.done(), "what runs is not cut off"
        worker.go_on()
        assert await task == 1

    worker = start()
    talk(endpoint_in(shm_dir), run)
    worker.finish()
    assert list(shm_dir.iterdir()) == []


def test_an_interrupted_worker_says_goodbye(shm_dir: Path, start: Start) -> None:
    async def run(handle: TrainerHandle) -> None:
        task = await begun(worker, handle, 1)
        worker.process.send_signal(signal.SIGINT)
        with pytest.raises(BrokenError, match=r"the trainer worker at .* stopped"):
            await task

    worker = start()
    talk(endpoint_in(shm_dir), run, retry_s=EVENT_S)
    worker.until("interrupted")
    worker.go_on()
    worker.finish()
    assert list(shm_dir.iterdir()) == []


def test_a_step_that_never_ends_keeps_no_process_from_ending_and_its_exit_code_tells(
    shm_dir: Path, start: Start
) -> None:
    async def run(handle: TrainerHandle) -> None:
        task = await begun(worker, handle, 101)
        worker.process.send_signal(signal.SIGTERM)
        with pytest.raises(BrokenError, match=r"the trainer worker at .* stopped"):
            await task

    worker = start("--drain-s", "0.1", "--exit-s", "0.1")
    talk(endpoint_in(shm_dir), run, retry_s=EVENT_S)
    worker.until("done")
    assert worker.process.wait(EVENT_S) == 1
    assert list(shm_dir.iterdir()) == []
