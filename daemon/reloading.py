"""Settings that change while a daemon runs: what it takes over, and what it says of the rest."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

from forebay.sockets import tell
from forebay.wire import Event, ForebayError, setting_of

from .logs import start_logging
from .settings import Settings

log = logging.getLogger("forebay.daemon")

ReadSettings = Callable[[], Settings]


def read_again(running: Settings, read: ReadSettings) -> tuple[Settings, str]:
    """Reads a daemon's settings again, and logs what that changes.

    Args:
        running: Those that it has.
        read: Reads flags, environment and file as at its start.

    Returns:
        Those that it goes on with, which differ in reloadable ones alone, and what came of it in words. Where they
        cannot be read, they are the same as before.
    """
    try:
        wanted = read()
    except ForebayError as error:
        tell(log, logging.ERROR, Event.RELOAD_REFUSED, reason=str(error))
        return running, f"settings not read again: {error}"
    taken, left = _changes(running, wanted)
    for name, value in taken.items():
        tell(log, logging.INFO, Event.SETTING_CHANGED, setting=name, before=getattr(running, name), after=value)
    if left:
        tell(log, logging.WARNING, Event.RESTART_NEEDED, settings=left)
    settings = dataclasses.replace(running, **taken)
    if taken.keys() & {"log_level", "log_format"}:
        start_logging(settings.log_level, settings.log_format)
    words = f"settings read again, {len(taken)} changed"
    return settings, f"{words}; a restart is needed for {', '.join(left)}" if left else words


def _changes(running: Settings, wanted: Settings) -> tuple[dict[str, Any], list[str]]:
    """Returns the new values that can be taken over, by name, and the names of the other settings that differ."""
    taken, left = {}, []
    for field in dataclasses.fields(Settings):
        value = getattr(wanted, field.name)
        if value == getattr(running, field.name):
            continue
        if setting_of(field).reloadable:
            taken[field.name] = value
        else:
            left.append(field.name)
    return taken, left
