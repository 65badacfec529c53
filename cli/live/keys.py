"""Which keys were pressed, from the bytes that a terminal sends."""

from __future__ import annotations

import enum
import re
from typing import Final


class Key(enum.Enum):
    """What can be pressed."""

    QUIT = "q"
    FREEZE = "f"
    SORT = "s"
    REVERSE = "r"
    HELP = "h"
    UP = "up"
    DOWN = "down"
    PAGE_UP = "page up"
    PAGE_DOWN = "page down"


_KEYS: Final = {
    b"q": Key.QUIT,
    b"f": Key.FREEZE,
    b"p": Key.FREEZE,
    b" ": Key.FREEZE,
    b"s": Key.SORT,
    b"r": Key.REVERSE,
    b"h": Key.HELP,
    b"?": Key.HELP,
    b"\x1b[A": Key.UP,
    b"\x1bOA": Key.UP,
    b"\x1b[B": Key.DOWN,
    b"\x1bOB": Key.DOWN,
    b"\x1b[5~": Key.PAGE_UP,
    b"\x1b[6~": Key.PAGE_DOWN,
}
_PRESSED: Final = re.compile(rb"\x1b\[[0-9;]*[@-~]|\x1bO.|\x1b(?![\[O])|[^\x1b]", re.DOTALL)
_BEGUN: Final = re.compile(rb"\x1b(\[[0-9;]*|O)?\Z")
_LONGEST: Final = 16


class KeyReader:
    """Puts keys together, also those whose bytes come in pieces."""

    def __init__(self) -> None:
        self._begun = b""

    def read(self, data: bytes) -> list[Key]:
        """Returns the keys that are complete now; what means nothing is passed over."""
        data = self._begun + data
        begun = _BEGUN.search(data)
        self._begun = begun[0] if begun is not None and len(begun[0]) < _LONGEST else b""
        whole = data[: begun.start()] if begun is not None else data
        return [_KEYS[pressed] for pressed in _PRESSED.findall(whole) if pressed in _KEYS]
