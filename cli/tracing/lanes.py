"""Spans of time beside each other: as few lanes as it takes, so that no two on a lane overlap."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

Interval = tuple[float, float]


def lanes_for(intervals: Sequence[Interval]) -> list[int]:
    """Chooses a lane for each interval.

    Args:
        intervals: Beginnings and ends, in any order. One may begin where another on its lane ends.

    Returns:
        The number of each one's lane, from 0; the lowest that was free then.
    """
    lanes = [0] * len(intervals)
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    count = 0
    for index in sorted(range(len(intervals)), key=intervals.__getitem__):
        began_at, ended_at = intervals[index]
        while busy and busy[0][0] <= began_at:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, count = count, count + 1
        lanes[index] = lane
        heapq.heappush(busy, (ended_at, lane))
    return lanes
