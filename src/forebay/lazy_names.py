"""Packages that load their public names when they are first used, so that no process pays for another's imports.

Such a package imports what it offers in a block for the type checker alone, and this module reads the block: what
the type checker sees is what is loaded, and no second list can differ from it.

    if TYPE_CHECKING:
        from .codec import decode
    else:
        __getattr__, __dir__ = lazy_names(__name__)

`from forebay.wire import decode` at the top of a module loads that name there and then, as ever.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Home(NamedTuple):
    """Where a name comes from: the module, and what it is called there."""

    module: str
    name: str


def lazy_names(
    package: str, *, extras: Mapping[str, str] | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Makes a package's `__getattr__` and `__dir__` (PEP 562).

    Args:
        package: Its `__name__`.
        extras: By a module that may be missing, the extra of this distribution that brings it.
    """

    def load(name: str) -> object:
        home = homes_of(package).get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value: object = getattr(importlib.import_module(home.module, package), home.name)
        except ModuleNotFoundError as error:
            extra = (extras or {}).get(error.name or "")
            if extra is None:
                raise
            raise ImportError(f"{package}.{name} needs {error.name}: pip install 'forebay[{extra}]'") from error
        # From now on it is found without this function.
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return load, names


@functools.cache
def homes_of(package: str) -> dict[str, Home]:
    """Reads where a package's names come from out of its blocks for the type checker.

    Raises:
        ImportError: The package is installed without its source.
    """
    spec = importlib.util.find_spec(package)
    source = None if spec is None else getattr(spec.loader, "get_source", lambda _: None)(package)
    if source is None:
        raise ImportError(f"{package} is installed without its source, which says where its names come from")
    blocks = (node.body for node in ast.parse(source).body if isinstance(node, ast.If) and _is_for_types(node))
    imports = (line for block in blocks for line in block if isinstance(line, ast.ImportFrom))
    return {
        alias.asname or alias.name: Home("." * line.level + (line.module or ""), alias.name)
        for line in imports
        for alias in line.names
    }


def _is_for_types(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
