"""Where chunks go."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from forebay.wire import DataProtection, Welcome


class Target(NamedTuple):
    """A data endpoint, and whether it is encrypted."""

    endpoint: str
    is_encrypted: bool = False


def data_target(control_endpoint: str, welcome: Welcome) -> Target:
    """Returns where a server wants its chunks.

    Args:
        control_endpoint: The address at which the server was dialled.
        welcome: What it said there.
    """
    endpoint = data_endpoint(control_endpoint, welcome.data_endpoint)
    return Target(endpoint, welcome.data_protection is DataProtection.ENCRYPTED)


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
