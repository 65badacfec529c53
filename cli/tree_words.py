"""A micro-batch's tree in words: its containers and static values, and each array by dtype and shape."""

from __future__ import annotations

from collections.abc import Iterator

from forebay.wire import LeafSpec, Manifest, printable
from forebay.wire.structure import Dict, Leaf, List, Node, Record, Static


def tree_words(manifest: Manifest) -> str:
    """Returns the tree as Python would write it."""
    return _words(manifest.structure, iter(manifest.leaves))


def _words(node: Node, leaves: Iterator[LeafSpec]) -> str:
    match node:
        case Leaf():
            leaf = next(leaves)
            return f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]"
        case Static(value=value):
            return printable(repr(value))
    children = [_words(child, leaves) for child in node.children]
    match node:
        case Dict(keys=keys):
            told = (f"{printable(repr(key))}: {child}" for key, child in zip(keys, children, strict=True))
            return f"{{{', '.join(told)}}}"
        case Record(name=name, fields=fields):
            told = (f"{field}={child}" for field, child in zip(fields, children, strict=True))
            return f"{printable(name)}({', '.join(told)})"
        case List():
            return f"[{', '.join(children)}]"
        case _:
            return f"({', '.join(children)}{',' if len(children) == 1 else ''})"
