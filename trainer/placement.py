"""Where each leaf goes: the caller's shardings, as a pytree prefix or a function."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from forebay.sockets import tell
from forebay.wire import Array, Event, TreeError, TreeRegistry, words_of
from forebay.wire.structure import ROOT, Dict, Leaf, List, Node, Record, Static, Tuple, child_paths

from .host_tree import HostTree

log = logging.getLogger("forebay.trainer")

Device: TypeAlias = Any  # jax.Device, which type checkers take for a variable
Target: TypeAlias = Sharding | Device | None
"""Where one leaf goes; None is JAX's default device."""

ShardingFunction: TypeAlias = Callable[[str, jax.ShapeDtypeStruct], Target]
"""Maps a leaf's path, shape and dtype to where it goes; never its bytes, which lie in a slot."""


class Placement:
    """Finds the target of every leaf.

    Args:
        shardings: None, a sharding, a device, a pytree prefix of those with the micro-batch's own containers, or a
            `ShardingFunction`.
        registry: The classes that may occur in a micro-batch.
    """

    def __init__(self, shardings: Any, registry: TreeRegistry) -> None:
        self._shardings = shardings
        self._registry = registry
        self._replicated: set[str] = set()

    def targets(self, tree: HostTree) -> list[Target]:
        """Returns one target a leaf, in leaf order.

        Raises:
            TreeError: The prefix does not fit the micro-batch; the message names the path.
        """
        found = zip(self._as_asked(tree), tree.leaves, tree.paths, strict=True)
        return [self._divisible(target, leaf, path) for target, leaf, path in found]

    def _as_asked(self, tree: HostTree) -> list[Target]:
        ask = self._shardings
        if callable(ask) and not isinstance(ask, Sharding | jax.Device):
            return [_ask(ask, leaf, path) for leaf, path in zip(tree.leaves, tree.paths, strict=True)]
        return list(_broadcast(ask, tree.structure, ROOT, self._registry))

    def _divisible(self, target: Target, leaf: Array, path: str) -> Target:
        """Returns the target, or where it cannot divide the leaf, one that replicates it; says so once a leaf."""
        if not isinstance(target, NamedSharding) or not target.is_fully_addressable:
            # A leaf that is spread over processes has other bytes in each of them.
            return target
        try:
            target.shard_shape(leaf.shape)
        except (ValueError, IndexError):  # the latter for a leaf of fewer dimensions
            if path not in self._replicated:
                self._replicated.add(path)
                fields = {"leaf": path, "shape": str(leaf.shape), "not_divided_by": str(target.spec)}
                tell(log, logging.WARNING, Event.REPLICATED, **fields)
            return NamedSharding(target.mesh, PartitionSpec(), memory_kind=target.memory_kind)
        return target


def _ask(function: ShardingFunction, leaf: Array, path: str) -> Target:
    try:
        target = function(path, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    except Exception as error:
        # Here, so that a lent micro-batch is given up by name: it would fail the same way for ever.
        raise TreeError(f"the shardings' function failed for leaf {path}: {words_of(error)}") from error
    if not _is_target(target):
        raise TreeError(
            f"the shardings' function returned no sharding for leaf {path}",
            got=type(target).__name__,
            limit="a sharding, a device, or None",
        )
    return target


def _broadcast(prefix: Any, node: Node, path: str, registry: TreeRegistry) -> Iterator[Target]:
    match node:
        case Static():
            return
        case Leaf() if not _is_target(prefix):
            raise TreeError(
                f"the shardings have no sharding at leaf {path}",
                got=type(prefix).__name__,
                limit="a sharding, a device, or None",
            )
        case Leaf():
            yield prefix
        case _:
            for child, child_path, below in _descend(prefix, node, path, registry):
                yield from _broadcast(below, child, child_path, registry)


def _is_target(prefix: Any) -> bool:
    return prefix is None or isinstance(prefix, Sharding | jax.Device)


def _descend(
    prefix: Any, node: Dict | List | Tuple | Record, path: str, registry: TreeRegistry
) -> Iterator[tuple[Node, str, Any]]:
    """Yields each child with its path and the part of the prefix that covers it."""
    if _is_target(prefix):
        below = [prefix] * len(node.children)
    else:
        below = _children_of(prefix, node, path, registry)
    yield from zip(node.children, child_paths(node, path), below, strict=True)


def _children_of(prefix: Any, node: Node, path: str, registry: TreeRegistry) -> list[Any]:
    match node:
        case Dict() if isinstance(prefix, dict):
            return _values_of(prefix, node, path)
        case Record(name=name, fields=fields) if isinstance(prefix, registry.of_name(name, fields, path).cls):
            return [getattr(prefix, field) for field in fields]
        case List(children=children) if type(prefix) is list and len(prefix) == len(children):
            return prefix
        case Tuple(children=children) if type(prefix) is tuple and len(prefix) == len(children):
            return list(prefix)
    raise TreeError(
        f"the shardings do not fit the micro-batch at {path}",
        got=type(prefix).__name__,
        limit=f"a sharding, a device, None, or a {type(node).__name__.lower()} as in the micro-batch",
    )


def _values_of(prefix: dict[Any, Any], node: Dict, path: str) -> list[Any]:
    """Returns the shardings of a dict's values; static values need none."""
    needed = {key for key, child in zip(node.keys, node.children, strict=True) if not isinstance(child, Static)}
    missing, surplus = needed - prefix.keys(), prefix.keys() - set(node.keys)
    if missing or surplus:
        raise TreeError(
            f"the shardings do not fit the micro-batch's keys at {path}",
            got=f"{sorted(map(str, missing))} missing, {sorted(map(str, surplus))} too many",
            limit="the keys of the micro-batch",
        )
    return [prefix.get(key) for key in node.keys]
