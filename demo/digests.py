"""Digests of a micro-batch, so that two copies can be compared after both are gone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import xxhash

from .micro_batch import TrainExample


def leaf_digests(example: TrainExample[Any]) -> dict[str, str]:
    """Describes every leaf and static value.

    Args:
        example: With arrays of any kind; those on a device are fetched.

    Returns:
        By field name: dtype, shape and xxh3-64 of an array's bytes; the value itself of what is no array.
    """
    values = {field.name: getattr(example, field.name) for field in dataclasses.fields(example)}
    return {name: _digest(value) for name, value in values.items()}


def tree_digest(arrays: Iterable[Any]) -> str:
    """Returns one digest of many arrays, in their order."""
    return xxhash.xxh3_64_hexdigest("\n".join(_digest(array) for array in arrays).encode())


def _digest(value: Any) -> str:
    if not hasattr(value, "dtype"):
        return repr(value)
    array = np.ascontiguousarray(value)
    # As bytes: not every dtype that may be in a micro-batch offers a buffer of its own.
    octets = array.reshape(-1).view(np.uint8).data
    return f"{array.dtype}{list(array.shape)}:{xxhash.xxh3_64_hexdigest(octets)}"
