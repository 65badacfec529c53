"""The trainer's log, from which nothing comes back: what a user's handler raises must not end a queue."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

log = logging.getLogger("forebay.trainer")


def tell(level: int, text: str, *values: object, **more: Any) -> None:
    """Logs.

    Args:
        level: As in `logging`.
        text: A format for the values.
        *values: What goes into it.
        **more: As `logging.Logger.log` takes it.
    """
    with contextlib.suppress(Exception):
        log.log(level, text, *values, **more)
