"""Keys for the ways of the benchmark of ingest that have them: files as `forebay keygen` makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from forebay.sockets import load_public_key, make_key_files
from forebay.wire import DataProtection, Right

PROTECTIONS: Final = {
    "forebay_encrypted": DataProtection.ENCRYPTED,
    "forebay_authenticated": DataProtection.AUTHENTICATED,
}
"""What guards the data, of each way that has keys."""


class Keys(NamedTuple):
    """What the two sides of a way are told of their keys.

    Attributes:
        daemon: Settings of the daemon.
        client_key_file: Secret key file of Forebay's client; empty where the daemon has no keys.
        server_key_file: Public key file of the daemon, as the one before.
    """

    daemon: dict[str, str]
    client_key_file: str = ""
    server_key_file: str = ""


NO_KEYS: Final = Keys({})


def make_keys(folder: Path, protection: DataProtection) -> Keys:
    """Makes the keys of a daemon and of one client that may stage, and the file that lets it in.

    Args:
        folder: Where the files are written; they are of use as long as they lie there.
        protection: What is to guard the daemon's data endpoint.
    """
    server_public, server_secret = make_key_files(folder, "server")
    client_public, client_secret = make_key_files(folder, "client")
    authorised = folder / "authorised.toml"
    key = load_public_key(str(client_public), "key_file").decode()
    authorised.write_text(f'[bench-ingest]\nkey = "{key}"\nrights = ["{Right.STAGE}"]\n')
    # Whatever the umask is: a daemon refuses a file that others may write.
    authorised.chmod(0o600)
    return Keys(
        daemon={
            "key_file": str(server_secret),
            "authorised_file": str(authorised),
            "data_protection": protection.value,
        },
        client_key_file=str(client_secret),
        server_key_file=str(server_public),
    )
