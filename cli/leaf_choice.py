"""Which leaf, and which part of it, somebody means by PATH[SLICE]."""

from __future__ import annotations

import re
from types import EllipsisType
from typing import Final

from forebay.wire import Manifest, UsageError, printable

from .words import listed

Index = tuple[int | slice | EllipsisType, ...]

_STEP: Final = re.compile(r"\[(?:'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"|(-?\d+))\]")
_PART: Final = re.compile(r"(-?\d*)(?::(-?\d*)(?::(-?\d*))?)?")


def choose_leaf(text: str, manifest: Manifest) -> tuple[int, Index]:
    """Finds the leaf that is meant.

    Args:
        text: A leaf's path as it is shown, or in short (a.b.0 for ['a']['b'][0]), and a slice behind it, or none.
        manifest: The micro-batch's.

    Returns:
        The leaf's number, and the slice as numpy takes it; () for all of it.

    Raises:
        UsageError: No leaf has that path, several have, or the slice cannot be read or does not fit the shape.
    """
    names = [(path, leaf) for leaf, path in enumerate(manifest.paths)]
    # What is written in short may mean several; what is shown means one.
    names += [(short(path), leaf) for leaf, path in enumerate(manifest.paths)]
    found = [(len(name), leaf) for name, leaf in names if name and _begins(text, name)]
    if not found:
        limit = listed([short(path) or path for path in manifest.paths], most=8)
        raise UsageError("no leaf has that path", got=text, limit=limit)
    length = max(found)[0]
    leaves = sorted({leaf for one, leaf in found if one == length})
    if len(leaves) > 1:
        raise UsageError(
            "several leaves may be meant", got=text, limit=listed([manifest.paths[leaf] for leaf in leaves])
        )
    return leaves[0], _index(text[length:], manifest.leaves[leaves[0]].shape)


def short(path: str) -> str:
    """Returns a path as a shell takes it without quotes."""
    return _STEP.sub(lambda step: f".{step[1] or step[2] or step[3] or ''}", path).removeprefix(".")


def _begins(text: str, name: str) -> bool:
    return text.startswith(name) and text[len(name) :][:1] in ("", "[")


def _index(text: str, shape: tuple[int, ...]) -> Index:
    if not text:
        return ()
    parts = text[1:-1].split(",") if text.endswith("]") else [""]
    index = tuple(_part(part.strip(), text) for part in parts)
    given = sum(part is not ... for part in index)
    if given > len(shape) or len(index) - given > 1:
        raise UsageError("the slice does not fit the leaf", got=text, limit=f"{len(shape)} dimensions, of {shape}")
    before = index.index(...) if ... in index else len(index)
    dims = (*shape[:before], *shape[len(shape) - (given - before) :]) if given > before else shape
    for part, dim in zip((part for part in index if part is not ...), dims, strict=False):
        if isinstance(part, int) and not -dim <= part < dim:
            raise UsageError("the slice lies outside of the leaf", got=text, limit=f"shape {shape}")
    return index


def _part(part: str, text: str) -> int | slice | EllipsisType:
    if part == "...":
        return ...
    found = _PART.fullmatch(part)
    if found is None or not part or part == "-" or found[3] in ("0", "-"):
        limit = "such as [3], [0:4], [::2,-1] or [...,0]"
        raise UsageError("the slice cannot be read", got=printable(text), limit=limit)
    if ":" not in part:
        return int(part)
    return slice(*(int(bound) if bound not in (None, "") else None for bound in found.groups()))
