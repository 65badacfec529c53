"""A place where a thread stands still until a test lets it go on."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

PATIENCE_S = 60.0


class Gate:
    """Stands still whoever calls it, with whatever arguments, until it is opened; then it stays open.

    Args:
        name: What stands still there, for the message of a wait that ends without its event.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._reached = threading.Event()
        self._opened = threading.Event()

    def __call__(self, *_: Any, **__: Any) -> None:
        self._reached.set()
        assert self._opened.wait(PATIENCE_S), f"nobody opened the gate for {self._name} within {PATIENCE_S} s"

    def wait_until_reached(self) -> None:
        assert self._reached.wait(PATIENCE_S), f"{self._name} did not come to its gate within {PATIENCE_S} s"

    async def reached(self) -> None:
        await asyncio.to_thread(self.wait_until_reached)

    def open(self) -> None:
        self._opened.set()
