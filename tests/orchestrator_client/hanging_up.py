"""A listener that hangs up on whoever comes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def hanging_up(path: Path | None = None) -> Iterator[str]:
    """Hangs up in the middle of the handshake; yields the address.

    Args:
        path: Of a Unix socket; None for a port.
    """
    with socket.socket(socket.AF_INET if path is None else socket.AF_UNIX) as listener:
        listener.bind(("127.0.0.1", 0) if path is None else str(path))
        listener.listen()

        def hang_up() -> None:
            # Until the listener is shut down.
            while True:
                try:
                    caller, _ = listener.accept()
                except OSError:
                    return
                with caller:
                    caller.recv(1)

        thread = threading.Thread(target=hang_up)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{listener.getsockname()[1]}" if path is None else f"ipc://{path}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
