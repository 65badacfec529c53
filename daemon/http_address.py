"""Where the daemon's HTTP server listens: one text, as people write it."""

from __future__ import annotations

from typing import NamedTuple

from forebay.wire import SettingError, is_exposed

_SETTING = "setting http_endpoint"
_MAX_PORT = 65_535


class HttpAddress(NamedTuple):
    """A host and a port of it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_exposed(self) -> bool:
        """Whether other hosts may reach it."""
        return is_exposed(f"tcp://{self}")


def http_address(text: str) -> HttpAddress:
    """Reads HOST:PORT.

    Raises:
        SettingError: It is none.
    """
    host, _, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host.replace(":", "/")
    is_host = bool(host) and host.isascii() and host.isprintable() and not set(host) & set("/[]@? ")
    if not is_host or not (port.isascii() and port.isdecimal() and int(port[:6]) <= _MAX_PORT):
        raise SettingError(_SETTING, got=text, limit="HOST:PORT, such as 127.0.0.1:9470 or [::1]:9470")
    return HttpAddress(host, int(port))
