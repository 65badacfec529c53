"""Who a client is, and what it may do; read from a file of the operator's, decided without one."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from typing import Any, Final

from .errors import SettingError, printable

_KEY_CHARS: Final = 40
_Z85: Final = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#")
_FIELDS: Final = {"key", "rights", "queues"}
_NAME_END: Final = ":"
"""Between a client's name and what it calls itself, where a worker keeps the calls of clients apart."""


class Right(enum.StrEnum):
    """What a client may be allowed.

    Attributes:
        STAGE: To offer, abandon, await, reset and advance, in its queues.
        TRAIN: To call the methods of a trainer's worker.
        INSPECT: To see everything that a status, a story or a trace shows.
        OPERATE: To drain, pause, resume and forget.
    """

    STAGE = "stage"
    TRAIN = "train"
    INSPECT = "inspect"
    OPERATE = "operate"


class DataProtection(enum.StrEnum):
    """What guards the data endpoint.

    Attributes:
        NONE: Nothing but the file system, or the network around it.
        AUTHENTICATED: Chunks travel in the clear, and count only with the token of a grant, which is told on the
            encrypted control connection alone.
        ENCRYPTED: Chunks are encrypted, and only known clients connect.
    """

    NONE = "none"
    AUTHENTICATED = "authenticated"
    ENCRYPTED = "encrypted"


@dataclasses.dataclass(frozen=True, slots=True)
class Client:
    """One client as the operator knows it.

    Attributes:
        name: For people.
        rights: What it may do.
        queues: Names of the queues in which it may stage; None for all.
    """

    name: str
    rights: frozenset[Right]
    queues: frozenset[str] | None = None

    def may_use(self, queue: str) -> bool:
        """Whether a queue is one of its own."""
        return self.queues is None or queue in self.queues

    def may_see(self, queue: str) -> bool:
        """Whether it may hear what a queue holds, and who holds it."""
        return Right.INSPECT in self.rights or (Right.STAGE in self.rights and self.may_use(queue))

    def lacks(self, right: Right, queue: str | None = None) -> str:
        """Returns the words to refuse a request with that needs a right, in a queue if it is about one.

        Returns:
            Empty if it may.
        """
        if not self.rights:
            return "this connection's key is not authorised, or not any more; ask the operator"
        if right not in self.rights:
            return f"client {self.name!r} lacks the right {right.value!r}; ask the operator"
        if queue is not None and not self.may_use(queue):
            return f"client {self.name!r} lacks the right {right.value!r} in queue {printable(queue)!r}"
        return ""


TRUSTED: Final = Client("", frozenset(Right))
"""Whoever comes where no keys are asked for: it may do everything."""

STRANGER: Final = Client("", frozenset())
"""Whoever has a key that is not known: it may do nothing."""


def read_clients(text: str, source: str) -> dict[str, Client]:
    """Reads the authorised clients, a table each in TOML: key, rights, and queues if not all.

    Args:
        text: Of the file.
        source: The file's name, for errors.

    Returns:
        Clients by public key, in the 40 characters of Z85.

    Raises:
        SettingError: It cannot be read, or says something that has no meaning; the message names the client.
    """
    import tomllib  # for the few processes that read such a file

    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # the latter where arrays or tables are nested without end
        raise SettingError(f"authorised_file {source} cannot be read: {error}") from error
    clients: dict[str, Client] = {}
    for name, table in tables.items():
        key, client = _client(name, table, f"authorised_file {source}, client {printable(name)!r}")
        if key in clients:
            raise SettingError(f"authorised_file {source} gives {clients[key].name!r} and {name!r} the same key")
        clients[key] = client
    return clients


def _client(name: str, table: Any, where: str) -> tuple[str, Client]:
    if not name or _NAME_END in name:
        raise SettingError(f"{where}, name", got=name, limit=f"a text that is not empty, without {_NAME_END!r}")
    if not isinstance(table, Mapping):
        raise SettingError(where, got=table, limit='a table: [NAME], then key = "..." and rights = ["stage"]')
    if unknown := sorted(table.keys() - _FIELDS):
        raise SettingError(f"{where} has unknown fields", got=unknown, limit=sorted(_FIELDS))
    key = table.get("key")
    if not isinstance(key, str) or not is_public_key(key):
        raise SettingError(
            f"{where}, key", got=_short(key), limit="the 40 characters of a public key, from its .key file"
        )
    rights = list(_texts(table.get("rights"), f"{where}, rights"))
    if not rights or set(rights) - {right.value for right in Right}:
        limit = "one or more of " + ", ".join(Right)
        raise SettingError(f"{where}, rights", got=rights, limit=limit)
    return key, Client(name, frozenset(map(Right, rights)), _queues(table, f"{where}, queues"))


def _queues(table: Mapping[str, Any], where: str) -> frozenset[str] | None:
    if "queues" not in table:
        return None
    queues = frozenset(_texts(table["queues"], where))
    if not queues:
        raise SettingError(where, got=[], limit="one or more names of queues; without the field, all queues")
    return queues


def _short(key: object) -> object:
    """Returns a wrong key as it is shown: of a text that is too long its beginning and how long it is."""
    if not isinstance(key, str) or len(key) <= _KEY_CHARS:
        return key
    return f"{len(key)} characters, {key[: _KEY_CHARS // 2]}..."


def _texts(value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise SettingError(where, got=value, limit="a list of texts")
    yield from value


def is_public_key(text: str) -> bool:
    """Whether a text looks like a public key: 40 characters of Z85."""
    return len(text) == _KEY_CHARS and _Z85.issuperset(text)


def check_key_settings(*, key_file: str, authorised_file: str) -> None:
    """Checks that a server has both of the files that keys need, or neither.

    Raises:
        SettingError: One is missing.
    """
    if bool(key_file) != bool(authorised_file):
        missing = "authorised_file" if key_file else "key_file"
        raise SettingError(f"setting {missing}", got="", limit="a file: key_file and authorised_file go together")


def check_exposure(endpoints: Mapping[str, str], *, key_file: str, authorised_file: str, insecure: bool) -> None:
    """Checks that nothing is offered to other hosts by accident.

    Args:
        endpoints: Addresses to bind, by setting.
        key_file: The server's secret key, if it has one.
        authorised_file: Who may enter with keys.
        insecure: Whether everybody shall be let in.

    Raises:
        SettingError: An address is reachable from other hosts, and nobody said who may come, or only half of it.
    """
    for name, address in endpoints.items():
        if is_exposed(address) and not key_file and not insecure:
            check_key_settings(key_file=key_file, authorised_file=authorised_file)
            raise SettingError(
                f"setting {name} would let everybody in who reaches it",
                got=address,
                limit="ipc, or tcp on 127.0.0.1, as long as there are no keys",
                remedy="make keys (forebay keygen) and set key_file and authorised_file, see docs/security.md;"
                " or set insecure (--insecure, FOREBAY_INSECURE=true) on a network where you trust everybody",
            )


def check_data_reach(endpoints: Mapping[str, str]) -> None:
    """Checks that whoever reaches a server reaches its data endpoint as well.

    Args:
        endpoints: Addresses to bind, by setting: the one where it is asked, and the one for bulk data.

    Raises:
        SettingError: The data endpoint is for this host alone, and the other one is not, or is a tcp address.
    """
    (asked, address), (data, data_address) = endpoints.items()
    if address.startswith("tcp:") and data_address.startswith("ipc:"):
        raise SettingError(
            f"setting {data}",
            got=data_address,
            limit=f"a tcp address, as {asked} is one: other hosts cannot dial a socket of this one",
        )
    if is_exposed(address) and not is_exposed(data_address):
        raise SettingError(
            f"setting {data}",
            got=data_address,
            limit=f"an address that other hosts reach, as they reach {asked} at {address}: not this host's own",
        )


def protection_of(data_endpoint: str, *, key_file: str, data_protection: str) -> DataProtection:
    """Returns what guards a data endpoint: what the setting says, where there are keys and it is a tcp one."""
    has_keys = bool(key_file) and data_endpoint.startswith("tcp:")
    return DataProtection(data_protection) if has_keys else DataProtection.NONE


def open_to_all(endpoints: Mapping[str, str], *, key_file: str) -> list[str]:
    """Returns the addresses, of those by setting, where everybody may enter who reaches them from another host."""
    return [] if key_file else [address for address in endpoints.values() if is_exposed(address)]


def is_exposed(address: str) -> bool:
    """Whether other hosts may reach what is bound at an address."""
    if not address.startswith("tcp:"):
        return False
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    is_loopback = host in ("localhost", "::1") or (host.startswith("127.") and host.replace(".", "").isdecimal())
    return not is_loopback
