"""Tables as text, without a library that takes longer to load than the daemon to answer."""

from __future__ import annotations

import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

from forebay.wire import printable

_GAP: Final = "  "
_CUT: Final = "..."
_LEAST_CHARS: Final = 5
"""To which words may be cut: the dots, and what is left at their end."""
_ON: Final = " on "
_PEER: Final = re.compile(
    r"(?P<kept>(?:(?:gone [^:]{1,20}|not back): )?)(?P<name>.*)(?P<pid> pid [0-9]{1,10}) on (?P<host>.*)",
    re.DOTALL,
)
"""A peer, or the one that was there before; that it is gone, or not back, may not be cut."""


def terminal_columns() -> int:
    """Returns how wide a line may be; 80 where nobody says."""
    return shutil.get_terminal_size((80, 24)).columns


def table(header: Sequence[str], rows: Iterable[Sequence[object]], *, columns: int | None = None) -> str:
    """Makes a table with a line for the header and one for each row.

    Numbers stand at the right of their column. A column in which nothing stands is left out. The widest words are
    cut until a line fits; in their middle, since keys differ at their ends. Numbers are never cut, nor is the pid
    of a peer: its name and its host are.

    Args:
        header: What the columns are called.
        rows: Their cells; of what a peer said nothing can drive the terminal.
        columns: How wide a line may be; default as wide as the terminal.
    """
    cells = [[printable(cell) if isinstance(cell, str) else str(cell) for cell in row] for row in rows]
    kept = [index for index, _ in enumerate(header) if not cells or any(row[index] for row in cells)]
    lines = [[row[index] for index in kept] for row in (list(header), *cells)]
    upright = list(zip(*lines, strict=True))
    right = [_is_number(column[1:]) for column in upright]
    wanted = [max(map(_width, column)) for column in upright]
    least = [_least(column[1:], is_right) for column, is_right in zip(upright, right, strict=True)]
    widths = _fitting(wanted, least, columns or terminal_columns())
    return "".join(_line(line, widths, right) for line in lines)


def _least(cells: Sequence[str], is_right: bool) -> int:
    """Returns how narrow a column may become."""
    if is_right:
        return sys.maxsize
    pids = (len(peer["kept"] + peer["pid"].lstrip()) for cell in cells if (peer := _PEER.fullmatch(cell)))
    return max((_LEAST_CHARS, *pids))


def _fitting(wanted: Sequence[int], least: Sequence[int], columns: int) -> list[int]:
    widths = list(wanted)
    too_wide = sum(widths) - columns + len(_GAP) * (len(widths) - 1)
    for _ in range(too_wide):
        words = [index for index, width in enumerate(widths) if width > least[index]]
        if not words:
            break
        widths[max(words, key=widths.__getitem__)] -= 1
    return widths


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    placed = (_placed(*one) for one in zip(cells, widths, right, strict=True))
    return _GAP.join(placed).rstrip() + "\n"


def _placed(cell: str, width: int, is_right: bool) -> str:
    if _width(cell) > width:
        cell = _cut(cell, width)
    blanks = " " * (width - _width(cell))
    return blanks + cell if is_right else cell + blanks


def _cut(text: str, width: int) -> str:
    peer = _PEER.fullmatch(text)
    if peer is None:
        return _cut_middle(text, width)
    kept = peer["kept"]
    return kept + _cut_peer(peer["name"], peer["pid"], peer["host"], width - len(kept))


def _cut_peer(name: str, pid: str, host: str, width: int) -> str:
    """Leaves out of the name first, then of the host, and nothing of what is between them."""
    room = width - len(pid)
    if room < _LEAST_CHARS:
        return pid.lstrip()
    beside = room - len(_ON)
    if beside < _LEAST_CHARS + min(_LEAST_CHARS, _width(host)):
        return _fitted(name, room) + pid
    shown_host = _fitted(host, max(beside - max(_width(name), _LEAST_CHARS), beside // 2, _LEAST_CHARS))
    return _fitted(name, beside - _width(shown_host)) + pid + _ON + shown_host


def _fitted(text: str, width: int) -> str:
    return text if _width(text) <= width else _cut_middle(text, width)


def _cut_middle(text: str, width: int) -> str:
    """Leaves out the middle: a third of what is shown is the beginning."""
    head = tail = ""
    for char in text:
        if _width(head + char) > (width - len(_CUT)) // 3:
            break
        head += char
    for char in reversed(text):
        if _width(head + char + tail) > width - len(_CUT):
            break
        tail = char + tail
    # A mark whose letter is left out would stand on the dots.
    while tail and unicodedata.combining(tail[0]):
        tail = tail[1:]
    return f"{head}{_CUT}{tail}"


def _width(text: str) -> int:
    """Returns how many columns of a terminal a text takes: wide characters take two, marks on others none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)


def _is_number(cells: Sequence[str]) -> bool:
    return all(cell == "" or cell[0] in "-0123456789" for cell in cells)
