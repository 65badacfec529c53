"""Micro-batches of the soak: made from seed and key alone, so that each life of an orchestrator makes the same."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np
import xxhash

from forebay.wire import MIB, register_type

MAX_BODY_BYTES: Final = 48 * MIB
"""The largest micro-batch; a slot has to hold it."""

_KIB: Final = 1024
_SIZES: Final = (
    (0.55, 2 * _KIB, 56 * _KIB),
    (0.25, 128 * _KIB, 2 * MIB),
    (0.15, 4 * MIB, 12 * MIB),
    (0.05, 24 * MIB, 44 * MIB),
)
"""Share of the micro-batches, and the bytes of their large leaf: few come with their offer, many in chunks."""
_EXPIRING: Final = 0.15
"""Share of the micro-batches that expire."""
_EXPIRES_S: Final = (0.01, 3.0)
_ROWS: Final = 64
_COLUMNS: Final = 8
_DTYPES: Final[tuple[Any, ...]] = (
    np.uint8,
    np.int8,
    np.int16,
    np.int32,
    np.uint16,
    np.float16,
    np.float32,
    np.complex64,
    np.bool_,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
)


@register_type
@dataclasses.dataclass(frozen=True)
class SoakExample:
    """What a micro-batch of the soak is trained on.

    Attributes:
        inputs: float32 [rows, columns].
        targets: float32 [rows].
        weight: Static.
    """

    inputs: Any
    targets: Any
    weight: float


@register_type
class SoakIds(NamedTuple):
    """Expert ids of a micro-batch, which compress well.

    Attributes:
        ids: int16 [n], below 512.
        padding: Static.
    """

    ids: Any
    padding: int


def micro_batch(seed: int, key: str) -> dict[str, Any]:
    """Makes the micro-batch of a key.

    Args:
        seed: Of the soak.
        key: Decides about sizes, dtypes and bytes.
    """
    chance = random.Random(f"{seed}/{key}")
    bits = np.random.default_rng(xxhash.xxh3_64_intdigest(f"{seed}/{key}".encode()))
    example = SoakExample(
        inputs=bits.standard_normal((_ROWS, _COLUMNS), np.float32),
        targets=bits.standard_normal(_ROWS, np.float32),
        weight=chance.random(),
    )
    large_bytes = _large_bytes(chance)
    tree: dict[str, Any] = {
        "example": example,
        "meta": {"key": key, "version": chance.randrange(1000), "final": None, "on_policy": chance.random() < 0.5},
        "empty": np.zeros((4, 0), np.int32),
        "odd": (np.float32(chance.random()).reshape(()), [_leaf(chance, bits, 333)]),
    }
    if chance.random() < 0.4:
        tree["large"] = SoakIds(bits.integers(0, 512, large_bytes // 2, np.int16), padding=-1)
    else:
        tree["large"] = [
            _leaf(chance, bits, large_bytes // 2),
            _leaf(chance, bits, large_bytes - large_bytes // 2),
        ]
    return tree


def freshness(seed: int, key: str) -> tuple[int | None, float | None]:
    """Returns how many policy versions a key is behind at first, and in how many seconds it expires.

    None where it says nothing of that.
    """
    chance = random.Random(f"{seed}/{key}/freshness")
    (behind,) = chance.choices((None, 0, 1, 2, 3), (0.1, 0.6, 0.15, 0.1, 0.05))
    if chance.random() >= _EXPIRING:
        return behind, None
    shortest_s, longest_s = _EXPIRES_S
    # As many below a tenth of the longest time as above it, or nearly: most keys are trained within 0.1 s.
    return behind, round(shortest_s * (longest_s / shortest_s) ** chance.random(), 3)


def _large_bytes(chance: random.Random) -> int:
    share = chance.random()
    for part, least, most in _SIZES:
        if share < part:
            return chance.randrange(least, most)
        share -= part
    return _SIZES[0][1]


def _leaf(chance: random.Random, bits: np.random.Generator, nbytes: int) -> Any:
    dtype = np.dtype(chance.choice(_DTYPES))
    if dtype == np.bool_:
        return bits.integers(0, 2, nbytes, np.uint8).view(np.bool_)
    # Any bit pattern: what travels is bytes.
    return np.frombuffer(bits.bytes(nbytes - nbytes % dtype.itemsize), dtype)


def digest(tree: Any) -> str:
    """Returns the digest of a tree's structure, static values and bytes; its arrays may lie on a device."""
    state = xxhash.xxh3_64()
    for part in _parts(tree):
        state.update(part)
    return state.hexdigest()


def _parts(tree: Any) -> Iterator[Any]:
    if hasattr(tree, "dtype"):
        array = np.ascontiguousarray(tree)
        yield f"<{array.dtype}{list(np.shape(tree))}>".encode()
        yield array.reshape(-1).view(np.uint8).data
        return
    yield f"({type(tree).__name__}".encode()
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield repr(name).encode()
            yield from _parts(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _parts(value)
    elif dataclasses.is_dataclass(tree):
        for field in dataclasses.fields(tree):
            yield field.name.encode()
            yield from _parts(getattr(tree, field.name))
    else:
        yield repr(tree).encode()
    yield b")"
