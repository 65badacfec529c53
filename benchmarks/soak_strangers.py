"""Those who ask the daemon of a soak for what they have no keys or no rights for; they must get nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import numpy as np

from forebay.orchestrator_client import Refusal, StagingClient
from forebay.wire import (
    BrokenError,
    DataProtection,
    ForebayError,
    RefusalCode,
    RefusedError,
    WaitTimeoutError,
    words_of,
)

from .soak_keys import INSPECTOR, NEIGHBOUR, STRANGER, ClientKeyFiles, SoakKeys
from .soak_words import QUEUE

_PATIENCE_S: Final = 2.0
_NOBODY: Final = "nobody"
"""Comes without a key."""
_WHO: Final = (STRANGER, _NOBODY, INSPECTOR, NEIGHBOUR)
_FAR: Final = 1 << 20
"""A policy version that would make all others stale."""


def knock(seed: int, endpoint: str, keys: SoakKeys) -> list[str]:
    """Asks the daemon for everything that four visitors, one after the other, may not have.

    Args:
        seed: In the keys that they stage.
        endpoint: The daemon's control endpoint.
        keys: Of the soak.

    Returns:
        What it got all the same, in words.
    """
    visits = ((who, ClientKeyFiles() if who == _NOBODY else keys.of(who)) for who in _WHO)
    return [words for who, files in visits for words in asyncio.run(_ask_for_all(who, seed, endpoint, files))]


async def _ask_for_all(who: str, seed: int, endpoint: str, files: ClientKeyFiles) -> list[str]:
    client = StagingClient(
        endpoint,
        name=who,
        timeout_s=_PATIENCE_S,
        retry_s=0.3,
        silence_s=_PATIENCE_S,
        least_data_protection=DataProtection.NONE,
        **files._asdict(),
    )
    key = f"{who}/{seed}"
    tree = {"of": np.arange(4)}
    asks: dict[str, Callable[[], Awaitable[object]]] = {
        "stage": lambda: client.stage(tree, key=key, queue=QUEUE, wait_s=0.0, timeout_s=_PATIENCE_S),
        "wait": lambda: client.wait("orchestrator-0/1", queue=QUEUE, timeout_s=_PATIENCE_S),
        "advance": lambda: client.advance(_FAR, queue=QUEUE),
        "reset": lambda: client.reset(queue=QUEUE),
    }
    if who != INSPECTOR:
        asks["status"] = client.status
    try:
        greeting = await _got("greeting", client.__aenter__)
        if who in (STRANGER, _NOBODY):
            got = [greeting]
        else:
            # Without a greeting there is nobody to ask.
            got = [await _got(name, ask) for name, ask in asks.items()] if greeting else []
    finally:
        await client.close()
    return [f"{who}: {words}" for words in got if words]


async def _got(name: str, ask: Callable[[], Awaitable[object]]) -> str:
    """Returns what somebody got who may get nothing; empty if nothing, or if nobody answered."""
    try:
        answer = await ask()
    except (BrokenError, WaitTimeoutError):
        return ""
    except RefusedError as error:
        return "" if error.code == RefusalCode.NOT_ALLOWED else f"{name}: {words_of(error)}"
    except ForebayError as error:
        return f"{name}: {words_of(error)}"
    is_refused = isinstance(answer, Refusal) and answer.code is RefusalCode.NOT_ALLOWED
    return "" if is_refused else f"{name}: {answer!r}"
