"""Where the daemon is that a command asks when no endpoint is given."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from forebay.shm import default_endpoint
from forebay.sockets import Who, why_silent
from forebay.wire import check_endpoint

_VARIABLE: Final = "FOREBAY_CONTROL_ENDPOINT"
_USUAL_PLACES: Final = (
    "run/forebay/control*",
    "run/forebay/*/control*",
    "run/user/*/forebay/control.sock",
    "tmp/forebay-*/control.sock",
)
"""Below the root: of services, and of other users."""
_MOST_LOOKS: Final = 32
_WILDCARDS: Final = ("tcp://*:", "tcp://0.0.0.0:", "tcp://[::]:")


@dataclasses.dataclass(frozen=True, slots=True)
class Where:
    """Where a daemon is asked.

    Attributes:
        endpoint: Its control endpoint.
        is_default: Whether nobody said so: it is where this user's daemon would be.
    """

    endpoint: str
    is_default: bool = False


def where_to_ask(given: str | None, environment: Mapping[str, str] = os.environ) -> Where:
    """Finds the endpoint: given, or in FOREBAY_CONTROL_ENDPOINT, or in FOREBAY_CONFIG's file, or else this user's.

    Args:
        given: An endpoint, or None.
        environment: Variables.

    Raises:
        SettingError: It is neither ipc nor tcp, or the file cannot be used.
    """
    said = given or environment.get(_VARIABLE) or _of_file(environment.get("FOREBAY_CONFIG"))
    endpoint = said or default_endpoint("control")
    check_endpoint("control_endpoint", endpoint)
    return Where(endpoint, is_default=not said)


def _of_file(file: str | None) -> str | None:
    """Returns where the daemon with these settings can be asked from its own host."""
    if not file:
        return None
    from forebay.daemon.settings import read_settings_file

    endpoint = read_settings_file(Path(file)).get("control_endpoint")
    if not isinstance(endpoint, str):
        return None
    return to_dial(endpoint)


def to_dial(endpoint: str) -> str:
    """Returns where a daemon that is bound to an endpoint is dialled from its own host."""
    wildcard = next((start for start in _WILDCARDS if endpoint.startswith(start)), None)
    return endpoint if wildcard is None else f"tcp://127.0.0.1:{endpoint.removeprefix(wildcard)}"


def others_here(but: str, root: Path = Path("/")) -> list[str]:
    """Returns the control endpoints in the usual places of this host at which somebody listens and this user may.

    Args:
        but: One that is known already.
        root: Of the file system.
    """
    found = (f"ipc://{path}" for path in _sockets(root))
    return sorted(endpoint for endpoint in found if endpoint != but and _takes_us(endpoint))


def _sockets(root: Path) -> Iterator[Path]:
    paths = (path for pattern in _USUAL_PLACES for path in root.glob(pattern) if path.is_socket())
    for path, _ in zip(paths, range(_MOST_LOOKS), strict=False):
        yield path


def _takes_us(endpoint: str) -> bool:
    found = why_silent(endpoint)
    return found.who is Who.SOMEBODY and not found.words
