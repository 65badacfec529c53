"""`forebay peek`: what one micro-batch is made of, and its values."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from forebay.wire import UNLIMITED, HostError, Manifest, Peeked, Status, UnknownNameError, decode_manifest
from forebay.wire.plain_json import json_line

from .inspector import Conversation, Inspector, asks_daemon
from .json_option import JsonOption
from .leaf_choice import choose_leaf
from .names import InQueueOption, KeyArgument
from .slot_values import Stats, Values, open_slot
from .table import table
from .tree_words import tree_words
from .why import peek_or_none, without_manifest
from .words import age, counted, named, paragraph, quoted, size

_SHOWN_TREE_LEAVES = 64
_HEADER = ("path", "dtype", "shape", "codec", "size")


@dataclasses.dataclass(frozen=True, slots=True)
class _Look:
    """What is shown: the daemon's word, the manifest if there still is one, and what was read of the slot."""

    queue: str
    key: str
    peeked: Peeked
    manifest: Manifest | None
    stats: list[Stats] | None = None
    values: Values | None = None


@asks_daemon()
def peek(
    inspector: Inspector,
    key: KeyArgument,
    queue: InQueueOption = "train",
    values: Annotated[
        str, typer.Option(help="of this leaf, such as ids or ids[0:4,:8]", metavar="PATH[SLICE]")
    ] = "",
    stats: Annotated[bool, typer.Option("--stats", help="least, greatest and mean of each leaf")] = False,
    json: JsonOption = False,
) -> None:
    """Show what a micro-batch is made of, and its values."""
    peeked, status = inspector.talk(lambda daemon: _ask(daemon, queue, key))
    manifest = decode_manifest(peeked.manifest, UNLIMITED) if peeked.manifest else None
    look = _Look(queue, key, peeked, manifest)
    if values or stats:
        look = _read(look, status, values, stats=stats)
    sys.stdout.write(json_line(_object(look)) if json else "".join(_lines(look)))


async def _ask(daemon: Conversation, queue: str, key: str) -> tuple[Peeked, Status]:
    peeked = await peek_or_none(daemon, queue, key)
    if peeked is None:
        raise UnknownNameError(
            f"queue {quoted(queue)} knows no micro-batch {quoted(key)}:"
            " it was never offered there, or is forgotten"
        )
    return peeked, await daemon.status()


def _read(look: _Look, status: Status, values: str, *, stats: bool) -> _Look:
    peeked, manifest = look.peeked, look.manifest
    if manifest is None or peeked.slot_state not in ("READY", "LENT", "QUARANTINED"):
        where = f"in a slot that is {peeked.slot_state}" if peeked.slot_state else "in no slot"
        raise HostError(
            f"the values of {quoted(look.key)} cannot be read: it is {peeked.state}, {where}",
            remedy="only those that are READY or lent lie in a slot that can be read",
        )
    chosen = choose_leaf(values, manifest) if values else None
    slot = open_slot(status.pool, status.epoch, peeked.slot, peeked.generation)
    of_leaf = slot.values(manifest, *chosen) if chosen is not None else None
    return dataclasses.replace(look, values=of_leaf, stats=slot.stats(manifest) if stats else None)


def _lines(look: _Look) -> Iterator[str]:
    yield from (paragraph(f"{name:9}{words}", indent=" " * 9) + "\n" for name, words in _about(look) if words)
    manifest = look.manifest
    if manifest is None:
        return
    yield "\n"
    if not manifest.leaves:
        yield "no arrays\n"
    elif look.stats is None:
        yield table(_HEADER, _leaf_rows(manifest))
    else:
        told = zip(_leaf_rows(manifest), look.stats, strict=True)
        header = ("path", "dtype", "shape", "min", "max", "mean", "NaN", "Inf")
        yield table(header, ((*row[:3], *one.cells()) for row, one in told))
    if look.values is not None:
        yield f"\n{look.values}\n"


def _about(look: _Look) -> Iterator[tuple[str, str]]:
    peeked = look.peeked
    yield "key", f"{quoted(look.key)} in queue {quoted(look.queue)}"
    yield "state", f"{peeked.state} for {age(peeked.age_s)}" + (f": {peeked.reason}" if peeked.reason else "")
    if peeked.slot >= 0:
        yield "slot", f"{peeked.slot}.{peeked.generation}, {peeked.slot_state}"
    yield "with", named(peeked.holder, "") + (f" for {age(peeked.held_s)}" if peeked.held_s else "")
    yield "from", named(peeked.sender, "")
    yield "version", "" if peeked.policy_version is None else str(peeked.policy_version)
    yield "stale in", "" if peeked.stale_in_s is None else age(peeked.stale_in_s)
    if look.manifest is not None:
        arrays = len(look.manifest.leaves)
        yield (
            "size",
            f"{size(peeked.payload_bytes)} in {counted(arrays, 'array')}, {size(peeked.body_bytes)} in a slot",
        )
        if arrays <= _SHOWN_TREE_LEAVES:
            yield "tree", tree_words(look.manifest)


def _leaf_rows(manifest: Manifest) -> Iterator[tuple[object, ...]]:
    for path, leaf in zip(manifest.paths, manifest.leaves, strict=True):
        yield path, leaf.dtype, _shape(leaf.shape), leaf.codec, size(leaf.nbytes)


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _object(look: _Look) -> dict[str, Any]:
    told: dict[str, Any] = {"queue": look.queue, "key": look.key, **(without_manifest(look.peeked) or {})}
    manifest = look.manifest
    if manifest is not None:
        told["tree"] = tree_words(manifest) if len(manifest.leaves) <= _SHOWN_TREE_LEAVES else None
        leaves = zip(manifest.paths, manifest.leaves, strict=True)
        told["leaves"] = [
            {"path": path, "dtype": leaf.dtype, "shape": leaf.shape, "codec": leaf.codec, "nbytes": leaf.nbytes}
            for path, leaf in leaves
        ]
    if look.stats is not None:
        told["leaves"] = [leaf | stats.as_object() for leaf, stats in zip(told["leaves"], look.stats, strict=True)]
    if look.values is not None:
        told["values"] = look.values.as_object()
    return told
