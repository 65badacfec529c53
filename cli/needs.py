"""What a command needs beside the package itself, looked at before anything starts."""

from __future__ import annotations

import importlib.util

from forebay.wire import UsageError


def need_jax(command: str) -> None:
    """Checks that jax is installed, without importing it.

    Args:
        command: Which command's processes will import it.

    Raises:
        UsageError: It is not.
    """
    if importlib.util.find_spec("jax") is None:
        raise UsageError(f"{command} needs jax", remedy="pip install 'forebay[trainer]'")
