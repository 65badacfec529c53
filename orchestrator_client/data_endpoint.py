"""Where chunks go."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import urlsplit

from forebay.sockets import ClientKeys
from forebay.wire import DataProtection, SettingError, Welcome

from .server_kind import ServerKind

FILE_SYSTEM: Final = "file system"
_STRENGTHS: Final = (DataProtection.NONE, DataProtection.AUTHENTICATED, DataProtection.ENCRYPTED, FILE_SYSTEM)


class Target(NamedTuple):
    """A data endpoint, and what guards it: one of `DataProtection`, or the file system."""

    endpoint: str
    guard: str = DataProtection.NONE

    @property
    def is_encrypted(self) -> bool:
        """Whether whoever sends there needs keys."""
        return self.guard == DataProtection.ENCRYPTED

    def check(self, least: str) -> None:
        """Checks that it is guarded well enough.

        Args:
            least: One of `DataProtection`.

        Raises:
            SettingError: It is not.
        """
        if _STRENGTHS.index(self.guard) < _STRENGTHS.index(least):
            raise SettingError(
                f"setting least_data_protection: this client sends nothing to {self.endpoint}",
                got=self.guard,
                limit=f"{least}, or an ipc endpoint",
                remedy="set key_file, authorised_file and data_protection there, or least_data_protection"
                " (FOREBAY_LEAST_DATA_PROTECTION) to less here",
            )


def check_proof(kind: ServerKind, endpoint: str, keys: ClientKeys | None, least: str) -> None:
    """Checks that a server has to prove who it is where its word on what guards its data endpoint counts.

    Over tcp without keys anybody on the way could say it.

    Args:
        kind: Of the server.
        endpoint: Where it is dialled.
        keys: That this client has, if any.
        least: What must guard the data; one of `DataProtection`.

    Raises:
        SettingError: It has to prove nothing.
    """
    if least == DataProtection.NONE or keys is not None or endpoint.startswith("ipc:"):
        return
    servers = " or ".join(dict.fromkeys(("server_key_file", kind.key_setting)))
    raise SettingError(
        f"setting least_data_protection: without keys anybody could answer at {kind.setting} {endpoint}, and say"
        " that the data is guarded",
        got=f"{least}, and no keys",
        limit="keys, or an ipc endpoint",
        remedy=f"set client_key_file and {servers}, or least_data_protection (FOREBAY_LEAST_DATA_PROTECTION) to"
        f" {DataProtection.NONE}",
    )


def data_target(control_endpoint: str, welcome: Welcome) -> Target:
    """Returns where a server wants its chunks.

    Args:
        control_endpoint: The address at which the server was dialled.
        welcome: What it said there.
    """
    endpoint = data_endpoint(control_endpoint, welcome.data_endpoint)
    is_local = control_endpoint.startswith("ipc:") and endpoint.startswith("ipc:")
    return Target(endpoint, FILE_SYSTEM if is_local else welcome.data_protection)


def data_endpoint(control_endpoint: str, told: str) -> str:
    """Returns the address to send chunks to; a server bound to every address knows only its port.

    Args:
        control_endpoint: The address at which the server was dialled.
        told: Its data endpoint, as it says.
    """
    data = urlsplit(told)
    if data.scheme != "tcp" or data.hostname not in ("0.0.0.0", "::"):
        return told
    host = control_endpoint.removeprefix("tcp://").rpartition(":")[0]
    return f"tcp://{host}:{data.port}"
