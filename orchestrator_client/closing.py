"""How something is brought to its end that others must not disturb, and that must not hide why it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from forebay.wire import words_of

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


def cancel_again() -> None:
    """Has the current task hear of its last cancellation once more, and counts that once."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
        task.cancel()
