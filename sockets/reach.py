"""Why nobody answers at an endpoint, found out by looking once it is known that nobody does."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from forebay.shm import SHARE_USER, private_words

from .connections import hidden_path

_CONNECT_S: Final = 1.0
_ELSEWHERE: Final = (
    "if one runs, it is seen from elsewhere: another container, or a private /tmp (systemd's PrivateTmp=);"
    " give both sides a folder that they share"
)

_GONE: Final = "nobody listens at that socket any more: whoever made it is gone"
_FULL: Final = "it takes no more connections now (max_connections)"


def why_silent(endpoint: str) -> str:
    """Looks at an endpoint from which no answer came; takes a second at most.

    Args:
        endpoint: A tcp or ipc address.

    Returns:
        What is wrong with it, and what to do, in words that go on a sentence; empty if whoever listens there took
        the connection, and just says nothing.
    """
    if endpoint.startswith("ipc://"):
        return _look_at_path(Path(endpoint.removeprefix("ipc://")))
    if endpoint.startswith("tcp://"):
        return _look_at_port(*endpoint.removeprefix("tcp://").rpartition(":")[::2])
    return "it is neither an ipc:// nor a tcp:// address"


def _look_at_path(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect(os.fspath(path))
        except FileNotFoundError:
            if hidden_path(path).is_socket():
                return _look_at_hidden(hidden_path(path))
            missing = path if path.parent.is_dir() else path.parent
            return f"there is no {missing} here: {_ELSEWHERE}"
        except PermissionError:
            return f"{private_words(path)}: {SHARE_USER}"
        except ConnectionRefusedError:
            return _GONE
        except OSError as error:
            return f"it cannot be connected to ({error.strerror or error})"
    return ""


def _look_at_hidden(path: Path) -> str:
    """Looks at the socket of an endpoint that was full; whoever was killed meanwhile has left it as well."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return _GONE
        except OSError:  # its backlog is full too, or it is another user's
            pass
    return _FULL


def _look_at_port(host: str, port: str) -> str:
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S):
            return ""
    except ValueError:
        return f"{port!r} is no port"
    except socket.gaierror as error:
        return f"the name {host} is not known here ({error.strerror})"
    except ConnectionRefusedError:
        return "nobody listens there"
    except TimeoutError:
        return (
            "packets to it are not answered: see whether the host is up, and what a firewall lets through;"
            f" or {_FULL}"
        )
    except OSError as error:
        return f"it cannot be connected to ({error.strerror or error})"
