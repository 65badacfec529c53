"""Why nobody answers at an endpoint, found out by looking once it is known that nobody does."""

from __future__ import annotations

import enum
import os
import queue
import socket
import threading
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from forebay.shm import SHARE_USER, private_words

from .connections import hidden_path

LOOK_S: Final = 1.0
"""Seconds that a look may take, with all that it asks and tries; one at an ipc address waits for nothing."""
_LEAST_S: Final = 0.001
_MAX_PORT: Final = (1 << 16) - 1


class Who(enum.Enum):
    """Who listens at an address, as far as a look tells.

    Attributes:
        NOBODY: Nobody does.
        SOMEBODY: Somebody does.
        NO_ADDRESS: It is none that could be looked at.
        UNKNOWN: Nothing came back that would tell.
    """

    NOBODY = enum.auto()
    SOMEBODY = enum.auto()
    NO_ADDRESS = enum.auto()
    UNKNOWN = enum.auto()


class Finding(NamedTuple):
    """What a look found out.

    Attributes:
        who: Listens there.
        words: What is wrong with it, in words that go on a sentence; empty if whoever listens there took the
            connection, and just says nothing.
        advice: What to do about that, beside what `remedy` says; may be empty.
    """

    who: Who
    words: str = ""
    advice: str = ""

    def remedy(self, start: str, address: str) -> str:
        """Returns what to do, the likeliest first.

        Args:
            start: How to start whoever should listen there.
            address: What to set if it is elsewhere.
        """
        match self.who:
            case Who.NOBODY:
                return "; ".join(filter(None, (f"{start}, or {address}", self.advice)))
            case Who.SOMEBODY if self.words:
                return self.advice
            case _:
                return "; or ".join(filter(None, (self.advice, address)))


_ELSEWHERE: Final = (
    "if one runs, it is seen from elsewhere: another container, or a private /tmp (systemd's PrivateTmp=);"
    " give both sides a folder that they share"
)
_FULL_WORDS: Final = "it takes no more connections now (max_connections)"
_TAKEN: Final = Finding(Who.SOMEBODY, advice="see whether what listens there is what it should be, and lives")
_REFUSED: Final = Finding(Who.NOBODY, "nobody listens there")
_GONE: Final = Finding(Who.NOBODY, "nobody listens at that socket any more: whoever made it is gone")
_FULL: Final = Finding(
    Who.SOMEBODY, _FULL_WORDS, "end clients that it does not need, or start it with more max_connections"
)
_UNANSWERED: Final = Finding(
    Who.UNKNOWN,
    f"packets to it are not answered, or {_FULL_WORDS}",
    "see whether the host is up, and what a firewall lets through",
)


def why_silent(endpoint: str) -> Finding:
    """Looks at an endpoint from which no answer came; takes `LOOK_S` at most.

    Args:
        endpoint: A tcp or ipc address.
    """
    if endpoint.startswith("ipc://"):
        return _look_at_path(Path(endpoint.removeprefix("ipc://")))
    if endpoint.startswith("tcp://"):
        return _look_at_port(*endpoint.removeprefix("tcp://").rpartition(":")[::2])
    return Finding(Who.NO_ADDRESS, "it is neither an ipc:// nor a tcp:// address")


def _look_at_path(path: Path) -> Finding:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(LOOK_S)
        try:
            probe.connect(os.fspath(path))
        except FileNotFoundError:
            if hidden_path(path).is_socket():
                return _look_at_hidden(hidden_path(path))
            missing = path if path.parent.is_dir() else path.parent
            return Finding(Who.NOBODY, f"there is no {missing} here", _ELSEWHERE)
        except PermissionError:
            return Finding(Who.SOMEBODY, private_words(path), SHARE_USER)
        except ConnectionRefusedError:
            return _GONE
        except OSError as error:
            return _failed(error)
    return _TAKEN


def _look_at_hidden(path: Path) -> Finding:
    """Looks at the socket of an endpoint that was full; whoever was killed meanwhile has left it as well."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(LOOK_S)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return _GONE
        except OSError:  # its backlog is full too, or it is another user's
            pass
    return _FULL


def _failed(error: OSError) -> Finding:
    return Finding(Who.UNKNOWN, f"it cannot be connected to ({error.strerror or error})")


def _look_at_port(host: str, port: str) -> Finding:
    if not port.isascii() or not port.isdigit() or int(port) > _MAX_PORT:
        return Finding(Who.NO_ADDRESS, f"{port!r} is no port")
    deadline = time.monotonic() + LOOK_S
    try:
        found = _addresses(host.strip("[]"), int(port))
    except queue.Empty:
        words = f"the name {host} was not found within {LOOK_S:g} s"
        return Finding(Who.NO_ADDRESS, words, "see whether its name server answers")
    if isinstance(found, OSError):
        return Finding(Who.NO_ADDRESS, f"the name {host} is not known here ({found.strerror})")
    finding = _UNANSWERED
    for number, (family, address) in enumerate(found):
        # None of them may keep the others from being tried.
        share_s = (deadline - time.monotonic()) / (len(found) - number)
        finding = _look_at_address(family, address, share_s)
        if not finding.words:
            break
    return finding


_Addresses = list[tuple[int, Any]]


def _addresses(host: str, port: int) -> _Addresses | OSError:
    """Returns the addresses of a host, or why it has none.

    Raises:
        queue.Empty: Its name server takes too long. Nothing can end the question, so a thread is left to it.
    """
    answers: queue.SimpleQueue[_Addresses | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            answers.put(error)
        except UnicodeError as error:
            answers.put(OSError(0, str(error)))
        else:
            answers.put([(family, address) for family, _, _, _, address in found])

    threading.Thread(target=ask, name="forebay-name", daemon=True).start()
    return answers.get(timeout=LOOK_S)


def _look_at_address(family: int, address: Any, within_s: float) -> Finding:
    with socket.socket(family) as probe:
        probe.settimeout(max(_LEAST_S, within_s))
        try:
            probe.connect(address)
        except ConnectionRefusedError:
            return _REFUSED
        except TimeoutError:
            return _UNANSWERED
        except OSError as error:
            return _failed(error)
    return _TAKEN
