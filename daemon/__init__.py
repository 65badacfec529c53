"""The daemon: a ledger that decides, and a loop that acts."""

from .embedded import LocalDaemon, local_daemon
from .main import exit_code, serve, start_logging
from .server import Ready
from .settings import Settings, load_settings

__all__ = [
    "LocalDaemon",
    "Ready",
    "Settings",
    "exit_code",
    "load_settings",
    "local_daemon",
    "serve",
    "start_logging",
]
