"""CURVE key pairs as files, in the format of pyzmq's certificates."""

from __future__ import annotations

import dataclasses
import os
import stat
import tempfile
from pathlib import Path

import zmq

from forebay.wire import HostError, SettingError, UsageError, is_public_key


@dataclasses.dataclass(frozen=True, slots=True)
class KeyPair:
    """A public key and its secret one, 40 characters of Z85 each."""

    public: bytes
    secret: bytes = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class ClientKeys:
    """What a client has to have: a pair of its own, and the key by which it knows the server.

    Attributes:
        own: Its pair.
        server: The server's public key.
        server_setting: Name of the setting that the latter is from.
    """

    own: KeyPair
    server: bytes
    server_setting: str = "server_key_file"

    def use(self, socket: zmq.Socket[bytes], endpoint: str) -> None:
        """Has a socket prove who it is at a tcp endpoint, and talk to nobody else than the server there."""
        if endpoint.startswith("tcp:"):
            socket.curve_publickey, socket.curve_secretkey = self.own.public, self.own.secret
            socket.curve_serverkey = self.server


def make_key_files(folder: Path, name: str) -> tuple[Path, Path]:
    """Makes a key pair as two files, of which the secret one is never readable by others.

    Args:
        folder: Where; it must exist.
        name: Of the files, without their endings.

    Returns:
        The public file, `NAME.key`, and the secret one, `NAME.key_secret`.

    Raises:
        UsageError: The name is none, or one of the files is there already; nothing has changed.
        HostError: They cannot be written.
    """
    if not name or not name.isprintable() or Path(name).name != name or name.startswith("."):
        raise UsageError("name of the key files", got=name, limit="a printable file name without a folder")
    from zmq.auth import create_certificates

    made: list[Path] = []
    try:
        # Private from its making on; a link is there whole or not at all, and never replaces a file.
        with tempfile.TemporaryDirectory(prefix=".forebay-", dir=folder) as private:
            for text in create_certificates(private, name):
                source, target = Path(text), folder / Path(text).name
                source.chmod(0o600 if source.suffix == ".key_secret" else 0o644)
                os.link(source, target)
                made.append(target)
    except OSError as error:
        for target in made:
            target.unlink()
        if isinstance(error, FileExistsError):
            raise UsageError(
                f"{error.filename2 or folder / name} exists already", remedy="remove it, or choose another name"
            ) from error
        raise HostError(f"the keys cannot be written to {folder} ({error.strerror})") from error
    public, secret = made
    return public, secret


def load_key_pair(path: str, setting: str) -> KeyPair:
    """Reads a secret key file.

    Args:
        path: Of the file.
        setting: Name of the setting that it is from, for errors.

    Raises:
        SettingError: There is none, it holds no pair, or others than its owner may read it.
    """
    # What has no secret need not be private: first of all, say that it is the wrong file.
    check_mode(Path(path), setting, forbidden=0, danger="read", remedy="chmod 600")
    public, secret = _load(path, setting)
    if secret is None:
        raise SettingError(f"setting {setting}: {path} holds no secret key", remedy="name its .key_secret file")
    check_mode(Path(path), setting, forbidden=stat.S_IRWXG | stat.S_IRWXO, danger="read", remedy="chmod 600")
    return KeyPair(public, secret)


def load_public_key(path: str, setting: str) -> bytes:
    """Reads the public key out of a key file.

    Raises:
        SettingError: There is none, others than its owner may write it, or it holds the secret key too: whoever
            has that can pass for its owner.
    """
    # Who obeyed a chmod 644 would open a secret file to all: first of all, say that it is the wrong one.
    check_mode(Path(path), setting, forbidden=0, danger="write", remedy="chmod 644")
    public, secret = _load(path, setting)
    if secret is not None:
        raise SettingError(
            f"setting {setting}: {path} holds the secret key too",
            limit="the public one alone: who has the other can pass for its owner",
            remedy="name the .key file that forebay keygen made beside it",
        )
    check_mode(Path(path), setting, forbidden=stat.S_IWGRP | stat.S_IWOTH, danger="write", remedy="chmod 644")
    return public


def load_client_keys(client_key_file: str, server_key_file: str, *, server_setting: str) -> ClientKeys | None:
    """Reads the keys of a client; None where it has none.

    Args:
        client_key_file: The client's own secret key file, or empty.
        server_key_file: The server's public key file, or empty.
        server_setting: Name of the setting for the server's, for errors.

    Raises:
        SettingError: Only one of the two is given, or one of them cannot be used.
    """
    if not client_key_file and not server_key_file:
        return None
    if not client_key_file or not server_key_file:
        missing = server_setting if client_key_file else "client_key_file"
        raise SettingError(
            f"setting {missing}", got="", limit=f"a key file: client_key_file and {server_setting} go together"
        )
    own = load_key_pair(client_key_file, "client_key_file")
    return ClientKeys(own, load_public_key(server_key_file, server_setting), server_setting)


def check_mode(path: Path, setting: str, *, forbidden: int, danger: str, remedy: str) -> None:
    """Checks that a path leads to a file, of this user or root, whose mode keeps others out.

    Args:
        path: The file.
        setting: Name of the setting that it is from.
        forbidden: Mode bits that it must not have.
        danger: What others could do with them, in one word.
        remedy: The command that helps, without the path.

    Raises:
        SettingError: It is missing, or is not so.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise SettingError(f"setting {setting}: {path} cannot be read ({error.strerror})") from error
    if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for
        raise SettingError(f"setting {setting}: {path} is no file", limit="a regular file, or a link to one")
    if status.st_uid not in (0, os.geteuid()):
        raise SettingError(
            f"setting {setting}: {path} belongs to somebody else",
            got=f"uid {status.st_uid}",
            limit=f"uid {os.geteuid()} or 0" if os.geteuid() else "uid 0",
            remedy=f"chown {os.geteuid()} {path}",
        )
    if status.st_mode & forbidden:
        raise SettingError(
            f"setting {setting}: others may {danger} {path}",
            got=f"mode {stat.S_IMODE(status.st_mode):04o}",
            limit=f"none of the bits {forbidden:04o}",
            remedy=f"{remedy} {path}",
        )


def _load(path: str, setting: str) -> tuple[bytes, bytes | None]:
    # Here, for most clients have no keys, and it takes long to load.
    from zmq.auth import load_certificate

    try:
        public, secret = load_certificate(path)
    except (OSError, ValueError) as error:
        raise SettingError(
            f"setting {setting}: {path} is no key file ({error})", remedy="forebay keygen"
        ) from error
    for key in (public, secret):
        # Both have the same form.
        if key is not None and not is_public_key(key.decode(errors="replace")):
            raise SettingError(f"setting {setting}: {path} is no key file", remedy="forebay keygen")
    return public, secret
