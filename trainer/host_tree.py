"""A micro-batch in host memory, whether it lies in a slot or was handed over in this process."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from forebay.wire import UNLIMITED, Array, TreeError, TreeRegistry, dtype_name, flatten
from forebay.wire.structure import Dict, Leaf, Node, Static


@dataclasses.dataclass(frozen=True, slots=True)
class HostTree:
    """A micro-batch taken apart.

    Attributes:
        structure: Its containers and static values.
        paths: One path a leaf, in leaf order.
        leaves: Its arrays; in a slot, read-only views that are valid until the slot is released.
    """

    structure: Node
    paths: tuple[str, ...]
    leaves: tuple[Array, ...]

    @property
    def host_bytes(self) -> int:
        """Bytes of all leaves together."""
        return sum(leaf.nbytes for leaf in self.leaves)

    @property
    def signature(self) -> bytes:
        """All of it but the values of its arrays; equal for two trees that a step could not tell apart.

        As bytes, since True equals 1 and NaN does not equal itself. The order of a dict's keys does not count, as
        it does not in JAX.
        """
        shapes = sorted(
            (path, dtype_name(leaf.dtype, path), leaf.shape)
            for leaf, path in zip(self.leaves, self.paths, strict=True)
        )
        return msgspec.msgpack.encode((_in_key_order(self.structure), shapes))


@dataclasses.dataclass(frozen=True, slots=True)
class PlacedTree:
    """A host tree and where its leaves go.

    Attributes:
        tree: The micro-batch.
        targets: One a leaf, in leaf order, as the transfer understands it.
        first_signature: Of the tree that was staged, if this one comes from the device: there, leaves may have
            been narrowed.
    """

    tree: HostTree
    targets: tuple[Any, ...]
    first_signature: bytes | None = None

    @property
    def signature(self) -> bytes:
        """The signature of the micro-batch as it was staged."""
        return self.tree.signature if self.first_signature is None else self.first_signature


def host_tree_of(payload: Any, registry: TreeRegistry) -> HostTree:
    """Takes a payload apart; copies only what is not C-contiguous and in native byte order.

    Args:
        payload: A pytree of numpy arrays and static values.
        registry: The classes that may occur in it.

    Raises:
        TreeError: It is no micro-batch; the message names the path.
    """
    try:
        flat = flatten(payload, registry=registry, limits=UNLIMITED)
    except RecursionError:
        raise TreeError("the payload is nested too deeply, or holds itself", limit="some hundred levels") from None
    return HostTree(flat.structure, flat.paths, flat.arrays)


def difference(staged: bytes, given: bytes) -> str:
    """Says by two signatures what is not the same."""
    (_, first), (_, second) = (msgspec.msgpack.decode(signature) for signature in (staged, given))
    was, now = ({path: f"{dtype}{shape}" for path, dtype, shape in leaves} for leaves in (first, second))
    for path in sorted(was.keys() | now.keys()):
        if was.get(path) != now.get(path):
            return f"leaf {path} is {now.get(path, 'missing')}, staged was {was.get(path, 'none')}"
    return "static values or containers differ"


def _in_key_order(node: Node) -> Node:
    match node:
        case Leaf() | Static():
            return node
        case Dict(keys=keys, children=children):
            pairs = sorted(zip(keys, children, strict=True), key=lambda pair: (type(pair[0]).__name__, pair[0]))
            return Dict(tuple(key for key, _ in pairs), tuple(_in_key_order(child) for _, child in pairs))
        case _:
            return msgspec.structs.replace(node, children=tuple(map(_in_key_order, node.children)))
