"""The shape of a tree without its arrays: what a manifest says about containers and static values.

The nodes are msgpack arrays tagged with their kind. A leaf carries no number: leaves count in depth-first order.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import msgspec

from .errors import TreeError, printable
from .limits import Limits

ROOT = "<root>"
_STATIC_TYPES = (type(None), bool, int, float, str)
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1
# Else one key of 900 kB above 4096 leaves would unfold a manifest of 1 MB to gigabytes of paths.
_MAX_PATH_CHARS = 1024
_MISFIT = "the manifest's structure does not fit its leaves"


class Leaf(msgspec.Struct, tag="a", array_like=True, frozen=True):
    """An array; the next one in order."""


class Static(msgspec.Struct, tag="s", array_like=True, frozen=True):
    """A value that travels inside the manifest: None, bool, int, float, str, or a tuple of them."""

    value: Any


class Dict(msgspec.Struct, tag="d", array_like=True, frozen=True):
    """A dict in its insertion order; keys are str or int."""

    keys: tuple[str | int, ...]
    children: tuple[Node, ...]


class List(msgspec.Struct, tag="l", array_like=True, frozen=True):
    """A list."""

    children: tuple[Node, ...]


class Tuple(msgspec.Struct, tag="t", array_like=True, frozen=True):
    """A tuple that holds at least one container or array."""

    children: tuple[Node, ...]


class Record(msgspec.Struct, tag="r", array_like=True, frozen=True):
    """A registered dataclass or namedtuple."""

    name: str
    fields: tuple[str, ...]
    children: tuple[Node, ...]


Node = Leaf | Static | Dict | List | Tuple | Record


def key_path(path: str, key: str | int) -> str:
    """Returns the path of a dict's value, in the spelling of `jax.tree_util.keystr`."""
    return f"{_prefix(path)}[{key!r}]"


def item_path(path: str, index: int) -> str:
    """Returns the path of a list's or tuple's item."""
    return f"{_prefix(path)}[{index}]"


def field_path(path: str, field: str) -> str:
    """Returns the path of a record's field."""
    return f"{_prefix(path)}.{field}"


def _prefix(path: str) -> str:
    return "" if path == ROOT else path


def child_paths(node: Dict | List | Tuple | Record, path: str) -> Iterator[str]:
    """Yields the path of each child of a container.

    One after another: all at once, those of a hostile manifest of 1 MB would take a quarter of a gigabyte.
    """
    match node:
        case Dict(keys=keys):
            return (key_path(path, key) for key in keys)
        case Record(fields=fields):
            return (field_path(path, field) for field in fields)
        case List(children=children) | Tuple(children=children):
            return (item_path(path, index) for index in range(len(children)))


def leaf_paths(node: Node, path: str = ROOT) -> list[str]:
    """Returns the path of every array leaf, in leaf order."""
    match node:
        case Leaf():
            return [path]
        case Static():
            return []
    children = zip(node.children, child_paths(node, path), strict=True)
    return [leaf_path for child, child_path in children for leaf_path in leaf_paths(child, child_path)]


def checked_structure(node: Node, leaf_count: int, limits: Limits) -> tuple[Node, list[str]]:
    """Checks a structure that was decoded from a peer's bytes.

    Args:
        node: The structure.
        leaf_count: Array leaves that its manifest declares; it must have as many.
        limits: This side's limits.

    Returns:
        The same structure, its static lists turned back into tuples (msgpack knows only one of them); and
        `leaf_paths` of it, which are on the way.

    Raises:
        TreeError: Too deep, other leaves than declared, repeated dict keys, children that do not fit their keys,
            names that are none, or a bad static value.
    """
    check = _Check(leaf_count, limits)
    checked = check.visit(node, ROOT, 0)
    if len(check.leaf_paths) != leaf_count:
        raise TreeError(_MISFIT, got=leaf_count, limit=len(check.leaf_paths))
    return checked, check.leaf_paths


class _Check:
    """Collects the leaves' paths while it walks; one instance a structure. Each offer waits for it."""

    def __init__(self, leaf_count: int, limits: Limits) -> None:
        self._leaf_count = leaf_count
        self._limits = limits
        self.leaf_paths: list[str] = []

    def visit(self, node: Node, path: str, depth: int) -> Node:
        check_place(depth, self._limits, path)
        if isinstance(node, Leaf):
            return self._leaf(node, path)
        if isinstance(node, Static):
            value = checked_static(node.value, self._limits, path, depth)
            return node if value is node.value else Static(value)
        if isinstance(node, Dict | Record):
            _check_names(node, path)
        children = [
            self.visit(child, child_path, depth + 1)
            for child, child_path in zip(node.children, child_paths(node, path), strict=True)
        ]
        if all(map(operator.is_, children, node.children)):
            return node
        return msgspec.structs.replace(node, children=tuple(children))

    def _leaf(self, node: Leaf, path: str) -> Leaf:
        # At the first one too many: the paths of all that 1 MB can hold would take a third of a gigabyte.
        if len(self.leaf_paths) == self._leaf_count:
            raise TreeError(_MISFIT, got=self._leaf_count, limit=f"at least {self._leaf_count + 1}")
        self.leaf_paths.append(path)
        return node


def _check_names(node: Dict | Record, path: str) -> None:
    names = node.keys if isinstance(node, Dict) else node.fields
    if len(names) != len(node.children) or len(set(names)) != len(names):
        raise TreeError(f"{path} has repeated or unmatched keys", got=names)
    if isinstance(node, Record) and not all(map(str.isidentifier, node.fields)):
        # Field names stand in paths, and paths in messages, as they are.
        raise TreeError(f"{path} has a field with an impossible name", got=node.fields)


def check_place(depth: int, limits: Limits, path: str) -> None:
    """Raises a TreeError if a place is nested deeper, or its path is longer, than the limit."""
    if len(path) > _MAX_PATH_CHARS:
        raise TreeError(
            f"the path {printable(path)} is too long",
            got=f"{len(path)} characters",
            limit=f"{_MAX_PATH_CHARS} characters",
            remedy="use shorter keys",
        )
    if depth > limits.max_depth:
        raise TreeError(
            f"the tree is too deep at {path}",
            got=f"{depth} levels",
            limit=f"{limits.max_depth} levels",
            remedy="flatten it before sending",
        )


def checked_static(value: Any, limits: Limits, path: str, depth: int = 0) -> Any:
    """Checks a static value; lists become tuples.

    Raises:
        TreeError: Of a type, size or depth that cannot travel.
    """
    check_place(depth, limits, path)
    cls = type(value)
    if cls is str and value.isascii():
        return value
    if cls in (tuple, list):
        return tuple(checked_static(item, limits, path, depth + 1) for item in value)
    if cls not in _STATIC_TYPES:
        raise TreeError(
            f"{path} cannot travel as a static value",
            got=cls.__name__,
            limit="None, bool, int, float, str and tuples of them",
        )
    if cls is int and not _INT_MIN <= value <= _INT_MAX:
        raise TreeError(f"{path} is an integer out of range", got=value, limit="-2**63 to 2**64-1")
    if cls is str and not _is_unicode(value):
        raise TreeError(f"{path} is a string that UTF-8 cannot hold", got=ascii(value))
    return value


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
