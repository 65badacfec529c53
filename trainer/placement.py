"""Where each leaf goes: the caller's shardings, as a pytree prefix or a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import jax
from jax.sharding import Sharding

from forebay.wire import Array, Manifest, TreeError, TreeRegistry
from forebay.wire.structure import ROOT, Dict, Leaf, List, Node, Record, Static, Tuple, children_with_paths

Device: TypeAlias = Any  # jax.Device, which type checkers take for a variable
Target: TypeAlias = Sharding | Device | None
"""Where one leaf goes; None is JAX's default device."""

ShardingFunction: TypeAlias = Callable[[str, jax.ShapeDtypeStruct], Target]
"""Maps a leaf's path, shape and dtype to where it goes; never its bytes, which lie in a slot."""


def targets(shardings: Any, manifest: Manifest, views: tuple[Array, ...], registry: TreeRegistry) -> list[Target]:
    """Finds the target of every leaf.

    Args:
        shardings: None, a sharding, a device, a pytree prefix of those with the micro-batch's own containers,
            or a `ShardingFunction`.
        manifest: Of the micro-batch.
        views: Its host arrays.
        registry: The classes that may occur in it.

    Returns:
        One target a leaf, in leaf order.

    Raises:
        TreeError: The prefix does not fit the micro-batch; the message names the path.
    """
    if callable(shardings) and not isinstance(shardings, Sharding | jax.Device):
        return [
            shardings(path, jax.ShapeDtypeStruct(view.shape, view.dtype))
            for path, view in zip(manifest.paths, views, strict=True)
        ]
    return list(_broadcast(shardings, manifest.structure, ROOT, registry))


def _broadcast(prefix: Any, node: Node, path: str, registry: TreeRegistry) -> Iterator[Target]:
    match node:
        case Static():
            return
        case Leaf() if not _is_target(prefix):
            raise TreeError(f"the shardings have no sharding at leaf {path}", got=type(prefix).__name__)
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
    children = list(children_with_paths(node, path))
    if _is_target(prefix):
        below = [prefix] * len(children)
    else:
        below = _children_of(prefix, node, path, registry)
    for (child, child_path), part in zip(children, below, strict=True):
        yield child, child_path, part


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
        )
    return [prefix.get(key) for key in node.keys]
