"""Each method of the handle, called once through a middle man that loses, repeats and holds messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from forebay import TrainerHandle
from forebay.wire import Message

from .lossy_router import Decide, Fate, LossyRouter, first
from .served import DeferringEngine, Served, payload, talk

KEY = "k"


@dataclasses.dataclass(frozen=True)
class Case:
    """A method of the handle.

    Attributes:
        method: The worker's, by which it is counted.
        call: Calls it.
        has_payload: Whether chunks travel.
        prepare: What the worker does before it.
    """

    method: str
    call: Callable[[TrainerHandle], Awaitable[Any]]
    has_payload: bool = False
    prepare: Callable[[Served], Any] | None = None


async def step_number(step: Awaitable[Any]) -> tuple[str, int, str]:
    trained = await step
    return trained.key, trained.value["number"], trained.source


async def how_staged(staging: Awaitable[dict[str, Any]]) -> bool:
    return bool((await staging)["staged"])


CASES = {
    "an inline step": Case("fwd_bwd", lambda handle: step_number(handle.train_step(payload(1), KEY)), True),
    "a staged step": Case(
        "fwd_bwd",
        lambda handle: step_number(handle.train_step(stage_key=KEY)),
        # Not through the middle man: what is repeated of it would be taken for the step's.
        prepare=lambda served: served.staged.stage_batch(payload(1), key=KEY),
    ),
    "a staging": Case("stage_batch", lambda handle: how_staged(handle.stage_batch(payload(1), key=KEY)), True),
    "an update": Case("update", lambda handle: handle.update(lr=0.5)),
    "a deferred update": Case("apply_deferred_update", lambda handle: handle.apply_deferred_update()),
    "a reset": Case("reset_staged", lambda handle: handle.call("reset_staged")),
    "metrics": Case("metrics", lambda handle: metrics(handle)),
    "a method of the user's": Case("count", lambda handle: handle.call("count", payload(2)), True),
}
EXPECTED = {
    "an inline step": (KEY, 1, "inline"),
    "a staged step": (KEY, 1, "staged"),
    "a staging": True,
    "an update": {"updates": 1, "lr": 0.5},
    "a deferred update": 1,
    "a reset": None,
    "metrics": "ready",
    "a method of the user's": (1, "batch 2"),
}
METHODS = pytest.mark.parametrize("name", CASES)


async def metrics(handle: TrainerHandle) -> Any:
    return (await handle.metrics())["state"]


class Counting:
    """A worker behind a middle man, whose engine and whose method count what is done."""

    def __init__(self, folder: Path) -> None:
        self.counted: list[str] = []
        self.served = Served(folder, DeferringEngine(), methods={"count": self._count})
        self.router = LossyRouter(self.served.endpoint, folder)

    def _count(self, batch: Any) -> tuple[int, str]:
        self.counted.append(batch["name"])
        return len(self.counted), batch["name"]

    def done(self) -> dict[str, int]:
        """Tells how often the engine and the method did something."""
        engine, queue = self.served.engine, self.served.staged.queue.statistics
        return {
            "fwd_bwd": len(engine.trained),
            "update": len(engine.updates),
            "apply_deferred_update": engine.deferred,
            "count": len(self.counted),
            "stage_batch": queue.staged,
        }

    def ran(self, method: str) -> int:
        """Tells how often a method was run."""
        counters = self.served.counters
        return counters.get(f"{method}_returned", 0) + counters.get(f"{method}_raised", 0)


def run(name: str, folder: Path, decide: Decide, damage: Any = None) -> Counting:
    """Has one method called through a fault; checks that it ran once and came to what it should."""
    case, counting = CASES[name], Counting(folder)

    async def through(handle: TrainerHandle) -> Any:
        if case.prepare is not None:
            case.prepare(counting.served)
        counting.router.decide, counting.router.damage = decide, damage
        value = await case.call(handle)
        counting.router.decide, counting.router.damage = first(Message, Fate.PASS), None
        return value

    with counting.served, counting.router:
        value = talk(counting.router.endpoint, through)
    assert value == EXPECTED[name]
    assert counting.ran(case.method) == 1
    assert counting.done().get(case.method, 1) == 1
    assert counting.served.memory == 0
    return counting
