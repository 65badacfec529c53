"""The dtypes that may travel, by name.

Names, never dtype strings: ml_dtypes gives several types the same short string, so a string would swap them.
"""

from __future__ import annotations

from typing import Any

# numpy first: ml_dtypes asks for a part of it, at which two threads that load both would wait for each other.
import numpy as np  # isort: split

import ml_dtypes

from .errors import TreeError

_NUMPY_NAMES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_ML_DTYPES_NAMES = (
    *("bfloat16", "int2", "int4", "uint2", "uint4"),
    *("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"),
    *("float8_e3m4", "float8_e4m3", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)

DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(name) for name in _NUMPY_NAMES} | {
    name: np.dtype(getattr(ml_dtypes, name)) for name in _ML_DTYPES_NAMES
}
"""Every dtype that may travel, by the name it travels under."""

_NAMES: dict[np.dtype[Any], str] = {dtype: name for name, dtype in DTYPES.items()}


def dtype_name(dtype: np.dtype[Any], path: str) -> str:
    """Names a native dtype for the wire.

    Args:
        dtype: A dtype in native byte order.
        path: The leaf's path, for the error.

    Raises:
        TreeError: The dtype is not in the whitelist.
    """
    # Not dtype.name, which numpy makes anew each time.
    name = _NAMES.get(dtype)
    if name is not None:
        return name
    raise TreeError(
        f"leaf {path} has a dtype that cannot travel",
        got=str(dtype),
        limit="bool, integers, floats and complex of numpy and ml_dtypes",
        remedy="convert it, or send it as a static value",
    )


def dtype_of(name: str, path: str) -> np.dtype[Any]:
    """Finds the dtype that travels under a name.

    Raises:
        TreeError: No dtype travels under that name.
    """
    try:
        return DTYPES[name]
    except KeyError:
        raise TreeError(
            f"leaf {path} names an unknown dtype",
            got=name,
            remedy="run the same Forebay version on both sides",
        ) from None
