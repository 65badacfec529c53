"""Where chunks go."""

from __future__ import annotations

from urllib.parse import urlsplit


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
