"""Tables as text, without a library that takes longer to load than the daemon to answer."""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

from forebay.wire import printable

_GAP: Final = "  "
_CUT: Final = "..."
_LEAST_CHARS: Final = 5
"""To which words may be cut: the dots, and what is left at their end."""


def terminal_columns() -> int:
    """Returns how wide a line may be; 80 where nobody says."""
    return shutil.get_terminal_size((80, 24)).columns


def table(header: Sequence[str], rows: Iterable[Sequence[object]], *, columns: int | None = None) -> str:
    """Makes a table with a line for the header and one for each row.

    Numbers stand at the right of their column. A column in which nothing stands is left out. The widest words are
    cut until a line fits; in their middle, since keys differ at their ends. Numbers are never cut.

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
    widths = _fitting(wanted, right, columns or terminal_columns())
    return "".join(_line(line, widths, right) for line in lines)


def _fitting(wanted: Sequence[int], are_numbers: Sequence[bool], columns: int) -> list[int]:
    widths = list(wanted)
    words = [index for index, are_number in enumerate(are_numbers) if not are_number]
    too_wide = sum(widths) - columns + len(_GAP) * (len(widths) - 1)
    for _ in range(too_wide):
        widest = max(words, key=widths.__getitem__, default=None)
        if widest is None or widths[widest] <= _LEAST_CHARS:
            break
        widths[widest] -= 1
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
