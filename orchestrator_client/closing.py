"""How something is done that others must not disturb, and that must not hide why it ends."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from forebay.wire import words_of

T = TypeVar("T")

CLOSE_S = 10.0
"""Seconds that each part of a closing may take: what is under way to end, the reset, the source's own end."""


async def trouble_with(what: str, ending: Awaitable[None]) -> list[str]:
    """Waits for the end of something, and tells what went wrong: it must not hide why the loop ended."""
    try:
        async with asyncio.timeout(CLOSE_S) as limit:
            await ending
    except Exception as error:  # noqa: BLE001 - see above
        return [f"{what} took over {CLOSE_S:g} s" if limit.expired() else f"{what} failed: {words_of(error)}"]
    return []


async def outlast(task: asyncio.Task[None]) -> asyncio.CancelledError | None:
    """Waits for a task's end, also when this one is cancelled meanwhile; returns the cancellation."""
    cancelled = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


async def in_own_thread(function: Callable[..., T], *values: Any) -> T:
    """Runs a function on a thread of its own: the loop's own ones may all be taken, by those who wait for this."""
    executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="forebay-client")
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, function, *values)
    finally:
        executor.shutdown(wait=False)


def cancel_again() -> None:
    """Has the current task hear of its last cancellation once more, and counts that once."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
        task.cancel()
