"""Keys for tests: a server's, and any number of clients', with the file that authorises some of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forebay.sockets import load_public_key, make_key_files


class KeyFiles:
    """Key files in a folder of their own.

    Args:
        folder: Where.
        names: Of the clients that have keys; nobody is authorised yet.
    """

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder = folder
        for name in ("server", *names):
            make_key_files(folder, name)
        self.authorised = folder / "authorised.toml"
        self.authorise()

    def public(self, name: str) -> str:
        return load_public_key(str(self.folder / f"{name}.key"), "test").decode()

    def entry(self, name: str, *rights: str, queues: list[str] | None = None) -> str:
        """Returns what the file of authorised clients says of one."""
        lines = [f"[{name}]", f'key = "{self.public(name)}"', f"rights = {list(rights)}"]
        return "\n".join(lines + ([] if queues is None else [f"queues = {queues}"])) + "\n"

    def authorise(self, *entries: str) -> None:
        """Replaces the file of authorised clients."""
        new = self.folder / "new.toml"
        new.write_text("".join(entries))
        new.chmod(0o600)
        new.rename(self.authorised)

    def server(self, **settings: str) -> dict[str, Any]:
        """Returns the settings of a daemon or worker with keys."""
        own = {"key_file": str(self.folder / "server.key_secret"), "authorised_file": str(self.authorised)}
        return own | settings

    def client(self, name: str, *, server: str = "server") -> dict[str, Any]:
        """Returns the arguments of a client with keys."""
        own = {"client_key_file": str(self.folder / f"{name}.key_secret")}
        return own | {"server_key_file": str(self.folder / f"{server}.key")}
