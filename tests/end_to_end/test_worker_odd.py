"""What no worker should be asked, and what no method should do: the next call is served all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay import LocalDaemon, NotBegunError, RemoteCallError, StagingClient, TrainerHandle

from .processes import StartDaemon
from .served import Served, payload, see, states, talk


class UntellableError(Exception):
    """An exception whose words end whoever wants them."""

    def __str__(self) -> str:
        raise SystemExit(3)


class UntellableKey:
    """A key of a dict whose name ends whoever wants it."""

    def __repr__(self) -> str:
        raise SystemExit(3)


def raises() -> None:
    raise UntellableError


def returns() -> dict[Any, int]:
    return {UntellableKey(): 1}


@pytest.mark.parametrize("concurrent", [False, True])
@pytest.mark.parametrize("function", [raises, returns])
def test_what_a_method_came_to_may_be_untellable_and_the_next_call_is_served(
    shm_dir: Path, function: Callable[[], Any], concurrent: bool
) -> None:
    async def run(handle: TrainerHandle) -> None:
        for _ in range(5):
            with pytest.raises(RemoteCallError):
                await handle.call("odd")
            assert await handle.call("even") == 2

    kind = "concurrent" if concurrent else "methods"
    with Served(shm_dir, **{kind: {"odd": function, "even": lambda: 2}}) as served:  # type: ignore[arg-type]
        talk(served.endpoint, run)


def test_a_step_that_nobody_waits_for_any_more_holds_up_nobody(shm_dir: Path, start_daemon: StartDaemon) -> None:
    daemon: LocalDaemon = start_daemon()

    async def run(handle: TrainerHandle) -> None:
        waiting = asyncio.create_task(handle.train_step(stage_key="never staged", stage_timeout_s=3600.0))
        await see(handle, lambda status: states(status) == ["fwd_bwd running"], "the step that waits")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        # In one line with it: were it still waiting, this would wait for an hour.
        assert (await handle.train_step(payload(1), "k1")).value["number"] == 1
        async with StagingClient(daemon.control_endpoint) as client:
            await client.stage(payload(2), key="k2")
        assert (await handle.train_step(stage_key="k2")).source == "staged"
        with pytest.raises(NotBegunError):
            await handle.train_step(stage_key="never staged", stage_timeout_s=0.01)

    with Served(shm_dir, daemon=daemon) as served:
        talk(served.endpoint, run, control_endpoint=daemon.control_endpoint)
