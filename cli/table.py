"""Tables and sizes as text, without a library that takes longer to load than the daemon to answer."""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

from forebay.wire import GIB, MIB, Peer, printable

_GAP: Final = "  "
_CUT: Final = "..."
_LEAST_CHARS: Final = 6
"""To which a column may be cut: what is left of a word, and the dots."""


def terminal_columns() -> int:
    """Returns how wide a line may be; 80 where nobody says."""
    return shutil.get_terminal_size((80, 24)).columns


def table(header: Sequence[str], rows: Iterable[Sequence[object]], *, columns: int | None = None) -> str:
    """Makes a table with a line for the header and one for each row.

    Numbers stand at the right of their column. A column in which nothing stands is left out. The widest columns
    are cut until a line fits.

    Args:
        header: What the columns are called.
        rows: Their cells; of what a peer said nothing can drive the terminal.
        columns: How wide a line may be; default as wide as the terminal.
    """
    cells = [[printable(cell) if isinstance(cell, str) else str(cell) for cell in row] for row in rows]
    kept = [index for index, _ in enumerate(header) if not cells or any(row[index] for row in cells)]
    lines = [[row[index] for index in kept] for row in (list(header), *cells)]
    upright = list(zip(*lines, strict=True))
    widths = _fitting([max(map(_width, column)) for column in upright], columns or terminal_columns())
    right = [_is_number(column[1:]) for column in upright]
    return "".join(_line(line, widths, right) for line in lines)


def _fitting(widths: list[int], columns: int) -> list[int]:
    widths = list(widths)
    room = columns - len(_GAP) * (len(widths) - 1)
    while sum(widths) > room and max(widths) > _LEAST_CHARS:
        widths[widths.index(max(widths))] -= 1
    return widths


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    placed = (_placed(*one) for one in zip(cells, widths, right, strict=True))
    return _GAP.join(placed).rstrip() + "\n"


def _placed(cell: str, width: int, is_right: bool) -> str:
    if _width(cell) > width:
        while _width(cell) > width - len(_CUT):
            cell = cell[:-1]
        cell += _CUT
    blanks = " " * (width - _width(cell))
    return blanks + cell if is_right else cell + blanks


def _width(text: str) -> int:
    """Returns how many columns of a terminal a text takes: wide characters take two, marks on others none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)


def _is_number(cells: Sequence[str]) -> bool:
    return all(cell == "" or cell[0] in "-0123456789" for cell in cells)


def peer_words(peer: Peer | None) -> str:
    """Names a peer; empty if there is none."""
    return "" if peer is None else printable(f"{peer.name} {peer.pid} on {peer.host}")


def size(value: int) -> str:
    """Spells bytes, in the largest unit of which there is one."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (1024, "KiB")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value} B"
