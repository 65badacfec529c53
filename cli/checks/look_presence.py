"""Looks for a running daemon, and for whoever has the endpoints."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Final

from forebay.shm.locks import LockNote, is_held, read_note
from forebay.shm.pool import LOCK_NAME
from forebay.wire.errors import ForebayError, SettingError, printable
from forebay.wire.settings import check_endpoint

from ..find_daemon import to_dial
from ..words import named
from .case import Case, may_enter
from .findings import Address, Answer, At, Running
from .line import without_remedy

_ASK_S: Final = 2.0
_ASK_BEFORE_START_S: Final = 0.5
_ANY_HOST: Final = ("*", "0.0.0.0")
_NO_CLIENT_KEYS: Final = "it lets in clients with keys alone, and FOREBAY_CLIENT_KEY_FILE names none"


def running_daemon(case: Case) -> Running:
    """Finds the daemon that has the pool, and asks it how it is."""
    lock, pool = case.pool / LOCK_NAME, str(case.pool)
    if case.pool.is_dir() and not may_enter(case.pool):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), pool)
    if not is_held(lock):
        return Running(pool, False)
    holder = _words(read_note(lock))
    settings = case.settings
    is_guarded = settings.key_file and settings.control_endpoint.startswith("tcp:")
    if is_guarded and not os.environ.get("FOREBAY_CLIENT_KEY_FILE"):
        return Running(pool, True, holder, silence=_NO_CLIENT_KEYS, was_asked=False)
    try:
        answer = _ask(to_dial(settings.control_endpoint), _ASK_BEFORE_START_S if case.before_start else _ASK_S)
    except ForebayError as error:
        return Running(pool, True, holder, silence=without_remedy(error))
    return Running(pool, True, holder, answer)


def _ask(endpoint: str, timeout_s: float) -> Answer:
    from ..inspector import Inspector

    status = Inspector("doctor", endpoint=endpoint, timeout_s=timeout_s).status()
    return Answer(named(status.peer), status.software, status.uptime_s, status.draining, status.pool)


def _words(note: LockNote | None) -> str:
    if note is None:
        return ""
    return f"{named(note.peer)} since {printable(note.since)}"


def look_at_address(case: Case, setting: str) -> Address:
    """Looks at an endpoint's address.

    Raises:
        SettingError: It is none that can be bound.
    """
    address = case.endpoints[setting]
    check_endpoint(setting, address)
    if address.startswith("ipc://"):
        at, words = _at_path(case, Path(address.removeprefix("ipc://")))
        return Address(setting, address, at, words)
    return _at_port(case, setting, address)


def _at_path(case: Case, path: Path) -> tuple[At, str]:
    lock = path.with_name(path.name + ".lock")
    if path.parent.is_dir() and not may_enter(path.parent):
        return At.NOWHERE, f"this user may not enter {path.parent}"
    if is_held(lock):
        note, pool_note = read_note(lock), read_note(case.pool / LOCK_NAME)
        is_daemons = (
            case.running.is_held and note is not None and pool_note is not None and note.peer == pool_note.peer
        )
        return (At.DAEMON, "") if is_daemons else (At.OTHER, _words(note) or "a process that has not named itself")
    if path.exists() and not path.is_socket():
        return At.NOWHERE, "what lies there is no socket"
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except BlockingIOError:  # somebody listens, and has much to do
            return At.FOREIGN, ""
        except OSError:
            return At.NOBODY, ""
    return At.FOREIGN, ""


def _at_port(case: Case, setting: str, address: str) -> Address:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if port == "*" or not port.isdecimal() or host in {name for _, name in socket.if_nameindex()}:
        return Address(setting, address, At.NOBODY, is_certain=False)
    error = why_not_bound("0.0.0.0" if host in _ANY_HOST else host.strip("[]"), int(port))
    if error is None:
        return Address(setting, address, At.NOBODY)
    if error.errno != errno.EADDRINUSE:
        return Address(setting, address, At.NOWHERE, error.strerror or str(error))
    if case.running.is_held:  # the likeliest, and a daemon tells only at one of its two ports who it is
        return Address(setting, address, At.DAEMON)
    return Address(setting, address, At.OTHER, _holder(case, address))


def why_not_bound(host: str, port: int) -> OSError | None:
    """Binds an address for a moment, as a daemon would; it does not listen, so that nobody connects."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, place = found[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        return error
    return None


def _holder(case: Case, address: str) -> str:
    import zmq

    from forebay.sockets.gate import load_server_keys
    from forebay.sockets.holder import who_holds

    try:
        keys = load_server_keys(case.settings.key_file, case.settings.authorised_file)
    except SettingError:  # another check says so
        keys = None
    with zmq.Context() as context:
        return who_holds(context, to_dial(address), keys)
