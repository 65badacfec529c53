"""Taking trees of numpy arrays apart and putting them together again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from .dtypes import dtype_name
from .errors import TreeError, printable
from .limits import Limits
from .registry import RecordType, TreeRegistry
from .structure import (
    ROOT,
    Dict,
    Leaf,
    List,
    Node,
    Record,
    Static,
    Tuple,
    check_place,
    checked_static,
    child_paths,
    field_path,
    item_path,
    key_path,
)

Array = np.ndarray[Any, np.dtype[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class FlatTree:
    """A tree taken apart.

    Attributes:
        structure: The containers and static values.
        paths: One path per array, in leaf order.
        arrays: The arrays, C-contiguous and in native byte order; the caller's own memory where it already was.
    """

    structure: Node
    paths: tuple[str, ...]
    arrays: tuple[Array, ...]


def flatten(tree: Any, *, registry: TreeRegistry, limits: Limits) -> FlatTree:
    """Takes a micro-batch apart into its structure and its arrays.

    Args:
        tree: A pytree of numpy arrays and static values. numpy scalars travel as 0-d arrays.
        registry: The classes that may occur in it.
        limits: The receiver's limits.

    Raises:
        TreeError: Something in it cannot travel; the message names its path.
    """
    flattener = _Flattener(registry, limits)
    structure = flattener.visit(tree, ROOT, 0)
    return FlatTree(structure, tuple(flattener.paths), tuple(flattener.arrays))


def unflatten(structure: Node, leaves: Sequence[Any], *, registry: TreeRegistry) -> Any:
    """Puts a tree together from its structure and one object per leaf.

    Args:
        structure: From `flatten` or a checked manifest.
        leaves: One object per array leaf, in leaf order: numpy views, device arrays, shardings.
        registry: The classes that may occur in it.

    Raises:
        TreeError: A class is not registered here, or has other fields here.
    """
    return _build(structure, iter(leaves), registry, ROOT)


class _Flattener:
    """Collects arrays and paths while it walks; one instance a tree."""

    def __init__(self, registry: TreeRegistry, limits: Limits) -> None:
        self._registry = registry
        self._limits = limits
        self.paths: list[str] = []
        self.arrays: list[Array] = []

    def visit(self, tree: Any, path: str, depth: int) -> Node:
        check_place(depth, self._limits, path)
        cls = type(tree)
        if cls in (np.ndarray, np.memmap) or isinstance(tree, np.generic):
            return self._leaf(np.asarray(tree), path)
        if cls is dict:
            return self._dict(tree, path, depth)
        if cls is list:
            return List(self._items(tree, path, depth))
        if cls is tuple and not _is_static(tree, self._limits.max_depth):
            return Tuple(self._items(tree, path, depth))
        if dataclasses.is_dataclass(cls) or (isinstance(tree, tuple) and cls is not tuple):
            return self._record(tree, self._registry.of_class(cls, path), path, depth)
        if cls in (type(None), bool, int, float, str, tuple):
            return Static(checked_static(tree, self._limits, path, depth))
        self._registry.of_class(cls, path)
        raise TreeError(f"{path} is neither a dataclass nor a namedtuple", got=cls)

    def _leaf(self, array: Array, path: str) -> Leaf:
        if len(self.arrays) >= self._limits.max_leaves:
            raise TreeError(
                f"the tree has too many arrays at {path}",
                limit=f"{self._limits.max_leaves} leaves",
                remedy="stack small arrays, or raise max_leaves at the receiver",
            )
        if array.nbytes > self._limits.max_micro_batch_bytes:
            # Before it is copied: a broadcast array may be larger than the host's memory.
            setting = printable(self._limits.size_setting)
            raise TreeError(
                f"leaf {path} is larger than {setting} allows",
                got=f"{array.nbytes} bytes",
                limit=f"{self._limits.max_micro_batch_bytes} bytes",
                remedy=f"send less at once, or raise {setting} at the receiver",
            )
        # Only some dtypes have a byte order to choose.
        dtype = array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")
        dtype_name(dtype, path)
        self.paths.append(path)
        # numpy.ascontiguousarray would turn a 0-d array into a 1-d one.
        self.arrays.append(np.asarray(array, dtype=dtype, order="C"))
        return Leaf()

    def _dict(self, tree: dict[Any, Any], path: str, depth: int) -> Dict:
        keys = tuple(tree)
        for key in keys:
            if type(key) not in (str, int):
                raise TreeError(
                    f"{path} has a key of the wrong type", got=key, limit="str or int", remedy="rename it"
                )
            checked_static(key, self._limits, f"a key of {path}")
        children = ((key_path(path, key), value) for key, value in tree.items())
        return Dict(keys, self._visit_all(children, depth))

    def _record(self, tree: Any, record: RecordType, path: str, depth: int) -> Record:
        children = ((field_path(path, name), _field(tree, name, path)) for name in record.fields)
        return Record(record.name, record.fields, self._visit_all(children, depth))

    def _items(self, tree: Sequence[Any], path: str, depth: int) -> tuple[Node, ...]:
        children = ((item_path(path, index), value) for index, value in enumerate(tree))
        return self._visit_all(children, depth)

    def _visit_all(self, children: Iterable[tuple[str, Any]], depth: int) -> tuple[Node, ...]:
        return tuple([self.visit(value, path, depth + 1) for path, value in children])


def _field(tree: Any, name: str, path: str) -> Any:
    try:
        return getattr(tree, name)
    except AttributeError as error:
        raise TreeError(f"{field_path(path, name)} was never set", remedy="give it a value") from error


def _is_static(value: Any, depth_left: int) -> bool:
    if type(value) is tuple:
        return depth_left > 0 and all(_is_static(item, depth_left - 1) for item in value)
    return type(value) in (type(None), bool, int, float, str)


def _build(node: Node, leaves: Iterator[Any], registry: TreeRegistry, path: str) -> Any:
    match node:
        case Leaf():
            return next(leaves)
        case Static(value=value):
            return value
    children = [
        _build(child, leaves, registry, child_path)
        for child, child_path in zip(node.children, child_paths(node, path), strict=True)
    ]
    match node:
        case Dict(keys=keys):
            return dict(zip(keys, children, strict=True))
        case Record(name=name, fields=fields):
            return registry.of_name(name, fields, path).build(children)
        case Tuple():
            return tuple(children)
        case List():
            return children
