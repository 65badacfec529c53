"""A transfer that leaves a micro-batch where it is: what a trainer does for one, the device left out."""

from __future__ import annotations

from typing import Any

from forebay.trainer.host_tree import HostTree, PlacedTree, host_tree_of
from forebay.trainer.transfer import OnDevice
from forebay.wire import default_registry, unflatten


class ViewTransfer:
    """Takes a micro-batch's numpy views for the device's arrays.

    All but `device_put` is what `JaxTransfer` does. A step gets the leaves' paths in place of arrays: its slot is
    released, and nobody may look at the views any more.
    """

    def take_apart(self, payload: Any) -> HostTree:
        """See `Transfer`."""
        return host_tree_of(payload, default_registry)

    def place(self, tree: HostTree) -> PlacedTree:
        """See `Transfer`."""
        return PlacedTree(tree, (None,) * len(tree.leaves))

    def issue(self, placed: PlacedTree) -> None:
        """See `Transfer`."""

    def complete(self, placed: PlacedTree, issued: None) -> OnDevice:  # noqa: ARG002
        """See `Transfer`."""
        tree = placed.tree
        return OnDevice(
            tree=unflatten(tree.structure, tree.paths, registry=default_registry),
            arrays=tree.paths,
            structure=tree.structure,
            paths=tree.paths,
            targets=placed.targets,
            host_bytes=tree.host_bytes,
            signature=placed.signature,
        )

    def fetch(self, on_device: OnDevice) -> PlacedTree:
        """See `Transfer`; nobody takes anything out of order."""
        raise NotImplementedError(f"{on_device.host_bytes} bytes were never on a device")

    def watch(self, outputs: Any) -> None:
        """See `Transfer`; there is no device that works."""
