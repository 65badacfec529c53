"""What a daemon's HTTP server says."""

from __future__ import annotations

import http.client
from typing import NamedTuple

from forebay import LocalDaemon

_PATIENCE_S = 60.0


class Seen(NamedTuple):
    status: int
    body: str
    content_type: str


def look(daemon: LocalDaemon, path: str, **headers: str) -> Seen:
    """Asks for a page."""
    connection = http.client.HTTPConnection(daemon.ready.http_endpoint, timeout=_PATIENCE_S)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return Seen(response.status, response.read().decode(), response.headers["Content-Type"])
    finally:
        connection.close()
