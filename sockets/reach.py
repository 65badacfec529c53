"""Why nobody answers at an endpoint, found out by looking once it is known that nobody does."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Final

_CONNECT_S: Final = 1.0
_MAX_IPC_PATH_BYTES: Final = 107
"""sockaddr_un.sun_path less its final zero."""
_ELSEWHERE: Final = (
    "if one runs, it is seen from elsewhere: another container, or a private /tmp (systemd's PrivateTmp=);"
    " give both sides a folder that they share"
)


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


def path_fault(path: Path) -> str:
    """Returns what is wrong with the length of a Unix socket's path; empty if nothing is."""
    nbytes = len(os.fsencode(path))
    if nbytes <= _MAX_IPC_PATH_BYTES:
        return ""
    return f"its path has {nbytes} bytes, a Unix socket's {_MAX_IPC_PATH_BYTES} at most; choose a shorter folder"


def _look_at_path(path: Path) -> str:
    fault = path_fault(path)
    if fault:
        return fault
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect(os.fspath(path))
        except FileNotFoundError:
            missing = path if path.parent.is_dir() else path.parent
            return f"there is no {missing} here: {_ELSEWHERE}"
        except PermissionError:
            return _not_permitted(path)
        except ConnectionRefusedError:
            return "nobody listens at that socket any more: whoever made it is gone"
        except OSError as error:
            return f"it cannot be connected to ({error.strerror or error})"
    return ""


def _not_permitted(path: Path) -> str:
    owner = "another user"
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            owner = f"uid {folder.stat().st_uid}"
            break
    return (
        f"it is private to {owner}, and this process runs as uid {os.geteuid()}:"
        " run both under one user, or in the group of the setting group"
    )


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
        return "packets to it are not answered: see whether the host is up, and what a firewall lets through"
    except OSError as error:
        return f"it cannot be connected to ({error.strerror or error})"
