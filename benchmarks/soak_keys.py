"""The keys of a soak: the daemon's, its clients' with their rights, and those of people who have none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from forebay.sockets import load_public_key, make_key_files
from forebay.wire import Right

from .soak_faults import ORCHESTRATORS
from .soak_words import QUEUE

_DAEMON: Final = "server"
INSPECTOR: Final = "inspector"
"""May look at everything, and do nothing."""
NEIGHBOUR: Final = "neighbour"
"""May stage, in another queue."""
STRANGER: Final = "stranger"
"""Has a key that the daemon does not know."""
_RIGHTS: Final[Mapping[str, tuple[Right, str]]] = {
    **dict.fromkeys(ORCHESTRATORS, (Right.STAGE, QUEUE)),
    INSPECTOR: (Right.INSPECT, QUEUE),
    NEIGHBOUR: (Right.STAGE, "next-door"),
}


class ClientKeyFiles(NamedTuple):
    """What `StagingClient` is given; empty for no keys."""

    client_key_file: str = ""
    server_key_file: str = ""


class SoakKeys:
    """Key files in a folder.

    Args:
        folder: A private one, which exists.

    Raises:
        HostError: They cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in (_DAEMON, STRANGER, *_RIGHTS):
            make_key_files(folder, name)
        self._authorised.write_text("".join(self._entry(name) for name in _RIGHTS))
        self._authorised.chmod(0o600)

    @property
    def _authorised(self) -> Path:
        return self._folder / "authorised.toml"

    def _entry(self, name: str) -> str:
        right, queue = _RIGHTS[name]
        key = load_public_key(str(self._folder / f"{name}.key"), "key_file").decode()
        return (
            f"[{name}]\nkey = {json.dumps(key)}\nrights = [{json.dumps(right)}]\nqueues = [{json.dumps(queue)}]\n"
        )

    def of_daemon(self) -> dict[str, Any]:
        """Returns the daemon's settings that are about keys."""
        return {"key_file": self._folder / f"{_DAEMON}.key_secret", "authorised_file": self._authorised}

    def of(self, name: str) -> ClientKeyFiles:
        """Returns the files of a client."""
        return ClientKeyFiles(
            str(self._folder / f"{name}.key_secret"),
            str(self._folder / f"{_DAEMON}.key"),
        )
