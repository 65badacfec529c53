"""Where the demonstration's processes find each other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from forebay.wire import SettingError

_IPC: Final = "ipc://"


class Endpoints(msgspec.Struct, frozen=True, kw_only=True):
    """All sockets, those of the trainer's worker among them: its processes get them before any of it is there.

    Attributes:
        control: The daemon's, for the orchestrator.
        trainer: The daemon's, for the trainer.
        worker: The worker's, for the orchestrator's calls.
        worker_data: The worker's, for inline payloads.
    """

    control: str
    trainer: str
    worker: str
    worker_data: str

    @classmethod
    def in_pool(cls, pool: Path, *, control: str, trainer: str) -> Endpoints:
        """Places the worker's sockets in the daemon's private folder, so that a run makes one folder in all."""
        return cls(
            control=control,
            trainer=trainer,
            worker=f"{_IPC}{pool}/worker.sock",
            worker_data=f"{_IPC}{pool}/worker_data.sock",
        )

    def encode(self) -> str:
        """Encodes for a command line."""
        return msgspec.json.encode(self).decode()

    def remove_worker_files(self) -> None:
        """Removes what a killed worker left.

        The daemon removes its folder only if it is empty. If it ended before, the folder is removed here.
        """
        for file in self._worker_files():
            file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                file.parent.rmdir()

    def _worker_files(self) -> Iterator[Path]:
        for endpoint in (self.worker, self.worker_data):
            socket = Path(endpoint.removeprefix(_IPC))
            yield socket
            yield socket.with_name(socket.name + ".lock")


def decode_endpoints(text: str) -> Endpoints:
    """Decodes what `Endpoints.encode` made.

    Raises:
        SettingError: It is malformed.
    """
    try:
        return msgspec.json.decode(text, type=Endpoints)
    except msgspec.DecodeError as error:
        raise SettingError(f"the demo's endpoints cannot be read: {error}", got=text) from error
