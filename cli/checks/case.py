"""What the checks are about: the settings of one daemon, and where its host is looked at."""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path

from forebay.daemon.settings import Settings

from .findings import Running


@dataclasses.dataclass(frozen=True)
class Case:
    """One examination.

    Attributes:
        settings: Those that the daemon would have.
        before_start: Whether it is about to be started: what takes long is left out.
        root: Where /proc, /sys, /etc, /run and /var are looked at.
    """

    settings: Settings
    before_start: bool = False
    root: Path = Path("/")

    @property
    def pool(self) -> Path:
        """The pool's folder."""
        return Path(self.settings.pool)

    @property
    def endpoints(self) -> dict[str, str]:
        """Addresses by setting."""
        names = ("control_endpoint", "data_endpoint", "trainer_endpoint")
        return {name: getattr(self.settings, name) for name in names}

    @property
    def ipc_paths(self) -> list[Path]:
        """Where ipc endpoints lie."""
        return [Path(at.removeprefix("ipc://")) for at in self.endpoints.values() if at.startswith("ipc://")]

    @functools.cached_property
    def running(self) -> Running:
        """The daemon that has the pool; asked once, for all checks."""
        from .look_presence import running_daemon

        return running_daemon(self)

    def text(self, path: str) -> str:
        """Returns what a file of the host says; empty if there is none, or none that can be read."""
        try:
            return (self.root / path).read_text(errors="replace")
        except OSError:
            return ""


def may_write(folder: Path) -> bool:
    """Whether this user may make files in a folder."""
    return os.access(folder, os.W_OK | os.X_OK, effective_ids=True)


def may_enter(folder: Path) -> bool:
    """Whether this user may use what lies in a folder."""
    return os.access(folder, os.X_OK, effective_ids=True)
