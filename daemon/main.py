"""Running a daemon as a process: exit codes, and telling a parent when it is ready."""

from __future__ import annotations

import logging
import os
import resource
import sys
import uuid

import msgspec

from forebay.shm import keep_freed_memory
from forebay.sockets import tell
from forebay.version import VERSION
from forebay.wire import MIB, Event, ForebayError, exit_code

from .http_address import http_address
from .logs import start_logging
from .ready import Ready
from .reloading import ReadSettings
from .server import Server
from .settings import Settings, load_settings

log = logging.getLogger("forebay.daemon")

_KEPT_BYTES = 64 * MIB


def serve(
    settings: Settings,
    *,
    ready_fd: int | None = None,
    parent_fd: int | None = None,
    read: ReadSettings | None = None,
) -> None:
    """Runs a daemon until it is told to stop.

    Args:
        settings: See `Settings`.
        ready_fd: Where one line of JSON, a `Ready`, is written when sockets and pool are there; then closed.
        parent_fd: A pipe whose end-of-file means that the parent is gone.
        read: Reads the settings again, at SIGHUP.

    Raises:
        HeldError: Another daemon has the pool or an endpoint.
        HostError: The pool or an endpoint cannot be had.
    """
    _raise_descriptor_limit()
    keep_freed_memory(_KEPT_BYTES)
    server = Server(settings, software=VERSION, epoch=uuid.uuid4().hex, read=read)
    try:
        server.run(parent_fd=parent_fd, at_work=lambda: _tell_ready(server.ready, settings, ready_fd))
    except BaseException:
        server.close(failed=True)
        raise
    server.close()


def _tell_ready(ready: Ready, settings: Settings, ready_fd: int | None) -> None:
    for address in settings.open_to_all:
        words = "everybody who reaches it may read, write and reset"
        tell(log, logging.WARNING, Event.INSECURE, endpoint=address, words=words)
    tell(
        log,
        logging.INFO,
        Event.SERVING,
        control=ready.control_endpoint,
        data=ready.data_endpoint,
        trainer=ready.trainer_endpoint,
        pool=ready.pool,
    )
    _tell_http(ready.http_endpoint)
    if ready_fd is not None:
        with os.fdopen(ready_fd, "wb") as stream:
            stream.write(msgspec.json.encode(ready) + b"\n")


def _tell_http(endpoint: str) -> None:
    if not endpoint:
        return
    tell(log, logging.INFO, Event.HTTP, endpoint=endpoint)
    if http_address(endpoint).is_exposed:
        words = "everybody who reaches it may see what the daemon does"
        tell(log, logging.WARNING, Event.INSECURE, endpoint=endpoint, words=words)


def _raise_descriptor_limit() -> None:
    """Takes all the descriptors that this process may have: libzmq ends the process when they run out."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> int:
    """Runs `python -m forebay.daemon`: settings from the environment, two descriptors as arguments."""
    ready_fd, parent_fd = (int(word) for word in sys.argv[1:3])
    try:
        settings = load_settings()
        start_logging(settings.log_level, settings.log_format)
        serve(settings, ready_fd=ready_fd, parent_fd=parent_fd, read=load_settings)
    except ForebayError as error:
        sys.stderr.write(f"forebay: {error}\n")
        return exit_code(error)
    return 0
