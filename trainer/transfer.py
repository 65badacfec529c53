"""What the staging queue asks of the device; `jax_transfer` is the real one."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

from forebay.wire.structure import Node

from .host_tree import HostTree, PlacedTree


@dataclasses.dataclass(frozen=True, slots=True)
class OnDevice:
    """A micro-batch on the device.

    Attributes:
        tree: As a step gets it: its containers and static values, arrays on the device.
        arrays: One a leaf, in leaf order.
        structure: As in the host tree that it came from.
        paths: As there.
        targets: As in the placed tree.
        host_bytes: Bytes of its leaves on the host.
        signature: Of that host tree.
    """

    tree: Any
    arrays: tuple[Any, ...]
    structure: Node
    paths: tuple[str, ...]
    targets: tuple[Any, ...]
    host_bytes: int
    signature: bytes


class Dispatched(Protocol):
    """Work that was handed to the device, which does one after another."""

    def is_done(self) -> bool:
        """Tells whether the device has most likely finished it; never waits, and takes microseconds."""

    def is_lost(self) -> bool:
        """Tells whether nothing is left by which it could be waited for: all that it made was given away."""

    def wait(self) -> None:
        """Waits until the device has finished it, well or badly."""


class Transfer(Protocol):
    """Ways between host and device. The queue runs one transfer at a time."""

    def take_apart(self, payload: Any) -> HostTree:
        """Takes a payload apart; raises TreeError if it is no micro-batch."""

    def place(self, tree: HostTree) -> PlacedTree:
        """Finds where the leaves go; raises TreeError if they cannot be had there."""

    def issue(self, placed: PlacedTree) -> Any:
        """Starts a transfer to the device; returns what `complete` needs."""

    def complete(self, placed: PlacedTree, issued: Any) -> OnDevice:
        """Waits until every byte is on the device and nothing refers to the host's memory."""

    def fetch(self, on_device: OnDevice) -> PlacedTree:
        """Copies what is on the device to private memory of the host."""

    def watch(self, outputs: Any) -> Dispatched | None:
        """Returns how to wait for the work that makes `outputs`; None if none of them is on a device."""
