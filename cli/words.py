"""Names, sizes, times and paragraphs as people read them; nothing that a peer said can drive the terminal."""

from __future__ import annotations

import textwrap

from forebay.wire import GIB, MIB, Peer, on_one_line, printable

from .table import terminal_columns

_SIZES = ((GIB, "GiB"), (MIB, "MiB"), (1024, "KiB"))
_UNITS = ((172_800, 86_400, "d"), (7_200, 3_600, "h"), (120, 60, "min"))
"""From how many seconds on a unit is used, its seconds, and its name."""


def age(seconds: float) -> str:
    """Spells a time in one unit, as exactly as anybody wants to know it."""
    for least, unit_s, name in _UNITS:
        if seconds >= least:
            return f"{seconds / unit_s:.0f} {name}"
    if seconds >= 10:
        return f"{seconds:.0f} s"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{max(seconds, 0.0) * 1000:.0f} ms"


def size(nbytes: int) -> str:
    """Spells bytes, in the largest unit of which there is one."""
    for unit, name in _SIZES:
        if nbytes >= unit:
            return f"{nbytes / unit:.4g} {name}"
    return f"{nbytes} B"


def quoted(name: str) -> str:
    """Shows a key or the name of a queue."""
    return f"'{printable(name)}'"


def listed(names: tuple[str, ...] | list[str], most: int = 4) -> str:
    """Shows some names, and how many more there are."""
    shown = ", ".join(map(quoted, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def named(peer: Peer | None, otherwise: str = "somebody") -> str:
    """Says who a peer is."""
    return otherwise if peer is None else printable(str(peer))


def counted(count: int, singular: str, plural: str = "") -> str:
    """Says how many of something there are."""
    return f"{count} {singular if count == 1 else plural or singular + 's'}"


def paragraph(text: str, *, indent: str = "", start: int = 0) -> str:
    """Breaks a text into lines that fit, all but the first one indented.

    Args:
        text: What peers said in it may be of any kind.
        indent: Before all lines but the first.
        start: Columns that are taken in the first line.
    """
    blanks = " " * start
    return textwrap.fill(
        on_one_line(text),
        terminal_columns(),
        initial_indent=blanks,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ).removeprefix(blanks)
