"""What lies in a slot of this host, read without a lease: it counts only if the slot was not freed meanwhile.

The daemon stores a slot's state before anything else of it is written anew. So what was read while the slot was
another micro-batch's already shows in its header, behind the reading.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forebay.shm import SlotView, read_pool_header
from forebay.wire import Array, HostError, Manifest, UsageError

if TYPE_CHECKING:
    from .leaf_choice import Index

_CHUNK_ITEMS: Final = 1 << 18
"""Items that are looked at at once: a megabyte or two of copies at most, whatever a leaf's size."""
_MOST_JSON_VALUES: Final = 10_000
_SHOWN_VALUES: Final = 200


@dataclasses.dataclass(frozen=True, slots=True)
class Stats:
    """Numbers of one leaf.

    Attributes:
        least: Of those that are finite; None where there is none, or no order.
        greatest: The same.
        mean: The same; None where there is none.
        nans: How many are no number.
        infs: How many are infinite.
    """

    least: float | int | None
    greatest: float | int | None
    mean: float | None
    nans: int
    infs: int

    def cells(self) -> tuple[object, ...]:
        """Returns the cells of a table."""
        shown = ("" if value is None else f"{value:.6g}" for value in (self.least, self.greatest, self.mean))
        return (*shown, self.nans, self.infs)

    def as_object(self) -> dict[str, Any]:
        """Returns the fields of a JSON object."""
        return {"min": self.least, "max": self.greatest, "mean": self.mean, "nan": self.nans, "inf": self.infs}


@dataclasses.dataclass(frozen=True, slots=True)
class Values:
    """A part of a leaf.

    Attributes:
        path: The leaf's.
        text: The values as numpy writes them.
        shape: Of the part.
        values: Nested lists; None if they are too many.
    """

    path: str
    text: str
    shape: tuple[int, ...]
    values: Any

    def __str__(self) -> str:
        return f"{self.path} {list(self.shape)}\n{self.text}"

    def as_object(self) -> dict[str, Any]:
        """Returns the fields of a JSON object.

        Raises:
            UsageError: They are too many.
        """
        if self.values is None:
            limit = f"{_MOST_JSON_VALUES} values"
            raise UsageError("too many values for JSON", got=list(self.shape), limit=limit, remedy="name a slice")
        return {"path": self.path, "shape": self.shape, "values": self.values}


class ReadSlot:
    """One slot of this host, while it holds what was asked for.

    Args:
        view: The slot.
        generation: The one that is to be read.
    """

    def __init__(self, view: SlotView, generation: int) -> None:
        self._view = view
        self._generation = generation

    def stats(self, manifest: Manifest) -> list[Stats]:
        """Looks through each leaf, a piece at a time.

        Raises:
            HostError: The slot was freed meanwhile, or before.
        """
        found = [stats_of(leaf) for leaf in self._leaves(manifest)]
        self._check()
        return found

    def values(self, manifest: Manifest, leaf: int, index: Index) -> Values:
        """Returns a part of a leaf; raises as `stats` does."""
        import numpy as np

        part = self._leaves(manifest)[leaf][index]
        with np.printoptions(threshold=_SHOWN_VALUES, linewidth=79):
            text = np.array2string(np.asarray(_plain(part) if part.size <= _MOST_JSON_VALUES else part))
        values = _listed(part) if part.size <= _MOST_JSON_VALUES else None
        self._check()
        return Values(manifest.paths[leaf], text, part.shape, values)

    def _leaves(self, manifest: Manifest) -> tuple[Array, ...]:
        self._check()
        _, body = self._view.read(self._generation)
        return manifest.views(body)

    def _check(self) -> None:
        header = self._view.header()
        if header.generation != self._generation or header.state.name not in ("READY", "LENT", "QUARANTINED"):
            raise HostError(
                "the slot was freed while it was read: what was read is not told, it may be another's",
                got=f"{header.state.name}, generation {header.generation}",
                limit=f"generation {self._generation}",
                remedy="look where the micro-batch is now (forebay why)",
            )


def open_slot(pool: str, epoch: str, index: int, generation: int) -> ReadSlot:
    """Maps a slot for reading.

    Args:
        pool: The pool's folder, as its daemon tells.
        epoch: The daemon's.
        index: The slot's.
        generation: Of the loan that is to be read.

    Raises:
        HostError: It cannot be read from here: another host or container, another user, or another daemon's pool.
    """
    folder = Path(pool)
    if (here := read_pool_header(folder).epoch) != epoch:
        raise HostError(
            f"the pool {folder} of this host is another daemon's",
            got=f"epoch {here}",
            limit=f"epoch {epoch}",
            remedy="values can be read only on the daemon's host",
        )
    return ReadSlot(SlotView(folder, index), generation)


def stats_of(leaf: Array) -> Stats:
    """Looks through an array, a piece at a time."""
    import numpy as np

    nans = infs = count = 0
    total: complex = 0.0
    least: float | int | None = None
    greatest: float | int | None = None
    for piece in _pieces(leaf):
        nan, inf = np.isnan(piece), np.isinf(piece)
        nans, infs = nans + int(nan.sum()), infs + int((inf & ~nan).sum())
        finite = piece[~(nan | inf)]
        if not finite.size:
            continue
        count += finite.size
        total += finite.sum(dtype=np.complex128 if np.iscomplexobj(finite) else np.float64).item()
        if not np.iscomplexobj(finite):
            low, high = finite.min().item(), finite.max().item()
            least = low if least is None else min(least, low)
            greatest = high if greatest is None else max(greatest, high)
    is_real = not np.iscomplexobj(leaf)
    return Stats(least, greatest, total.real / count if count and is_real else None, nans, infs)


def _pieces(leaf: Array) -> Iterator[Array]:
    flat = leaf.reshape(-1)
    for first in range(0, flat.size, _CHUNK_ITEMS):
        yield _plain(flat[first : first + _CHUNK_ITEMS])


def _plain(array: Array) -> Array:
    """Returns an array of numpy's own numbers, which all of numpy can count with."""
    import numpy as np

    if array.dtype.kind == "b":
        return array.astype(np.uint8)
    if array.dtype.isbuiltin == 1:
        return array
    # Those of ml_dtypes: none has more than 16 bits.
    return array.astype(np.int8 if "int" in array.dtype.name else np.float32)


def _listed(part: Array) -> Any:
    import numpy as np

    if part.dtype.kind == "b":
        return np.asarray(part).tolist()
    plain = _plain(part)
    if np.iscomplexobj(plain):
        return np.stack([plain.real, plain.imag], axis=-1).tolist()
    return _without_nans(plain.tolist())


def _without_nans(values: Any) -> Any:
    """Returns nested lists in which those that JSON has no word for are words."""
    if isinstance(values, list):
        return [_without_nans(value) for value in values]
    return values if not isinstance(values, float) or math.isfinite(values) else str(values)
