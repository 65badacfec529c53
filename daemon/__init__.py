"""The daemon: a ledger that decides, and a loop that acts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.lazy_names import lazy_names

if TYPE_CHECKING:
    from .embedded import LocalDaemon, local_daemon
    from .logs import start_logging
    from .main import serve
    from .ready import Ready
    from .settings import Settings, load_settings
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "LocalDaemon",
    "Ready",
    "Settings",
    "load_settings",
    "local_daemon",
    "serve",
    "start_logging",
]
