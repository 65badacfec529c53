"""The client's own threads: rollouts that take all of the loop's must not stop what they wait for."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading

from forebay.orchestrator_client.closing import in_own_thread

WAIT_S = 60.0


def test_what_runs_on_a_thread_of_its_own_runs_also_when_the_loops_threads_are_taken() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
        done = threading.Event()
        rollout = asyncio.create_task(asyncio.to_thread(done.wait, WAIT_S))
        await in_own_thread(done.set)
        assert await rollout, "the rollout waited in vain"

    asyncio.run(run())


def test_it_returns_and_raises_what_the_function_does() -> None:
    async def run() -> None:
        assert await in_own_thread(divmod, 7, 2) == (3, 1)
        try:
            await in_own_thread(divmod, 7, 0)
        except ZeroDivisionError:
            return
        raise AssertionError("the error was lost")

    asyncio.run(run())
