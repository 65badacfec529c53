"""Private memory of the host for leaves."""

from __future__ import annotations

from typing import Any

import numpy as np

from forebay.wire import LEAF_ALIGNMENT

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def aligned_memory(nbytes: int) -> Bytes:
    """Takes memory that begins where a leaf may begin, as in a slot.

    Raises:
        MemoryError: There is none.
    """
    memory: Bytes = np.empty(nbytes + LEAF_ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % LEAF_ALIGNMENT
    return memory[start : start + nbytes]
