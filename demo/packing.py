"""Packing trajectories into rows: segments start at multiples of 64, rows are filled to 55-100 %."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .corpus import Corpus
from .settings import ROW_TOKENS, SEGMENT_ALIGNMENT

_LEAST_TOKENS = math.ceil(0.55 * ROW_TOKENS)


class Segment(NamedTuple):
    """Where a trajectory lies: row, first token in it, tokens."""

    row: int
    start: int
    length: int


class PackedRows(NamedTuple):
    """Rows of byte tokens.

    Attributes:
        ids: int32 [B, T]; 0 at padding.
        segment_ids: int32 [B, T], from 1 up in each row; 0 is padding.
        segment_positions: int32 [B, T]; 0 at padding.
        segments: Row by row.
        names: One a segment.
    """

    ids: NDArray[np.int32]
    segment_ids: NDArray[np.int32]
    segment_positions: NDArray[np.int32]
    segments: list[Segment]
    names: tuple[str, ...]


def pack_rows(corpus: Corpus, rows: int, rng: np.random.Generator) -> PackedRows:
    """Fills `rows` rows with the corpus' next trajectories."""
    ids, segment_ids, positions = (np.zeros((rows, ROW_TOKENS), np.int32) for _ in range(3))
    segments, names = [], []
    for row in range(rows):
        for number, (start, length) in enumerate(plan_row(rng), 1):
            name, tokens = corpus.next_trajectory(length)
            place = (row, slice(start, start + length))
            ids[place] = tokens
            segment_ids[place] = number
            positions[place] = np.arange(length)
            segments.append(Segment(row, start, length))
            names.append(name)
    return PackedRows(ids, segment_ids, positions, segments, tuple(names))


def plan_row(rng: np.random.Generator) -> list[tuple[int, int]]:
    """Draws one row's segments.

    Returns:
        Start and length in tokens of each segment, in order; together at least 55 % of the row.
    """
    tokens = int(rng.integers(_LEAST_TOKENS, ROW_TOKENS + 1))
    cells = math.ceil(tokens / SEGMENT_ALIGNMENT)
    spare = cells * SEGMENT_ALIGNMENT - tokens
    inner_cuts = np.flatnonzero(rng.random(cells - 1) < 0.4) + 1
    cuts = [0, *inner_cuts.tolist(), cells]
    plan = []
    for first, end in itertools.pairwise(cuts):
        slack = int(rng.integers(0, spare + 1))
        spare -= slack
        plan.append((first * SEGMENT_ALIGNMENT, (end - first) * SEGMENT_ALIGNMENT - slack))
    return plan
