"""Makes the reference of the Python API from the signatures and docstrings of the package's public names."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

import forebay

_HOMES: Final = {
    "Sending": "forebay.orchestrator_client",
    "Training": "forebay.trainer",
    "Trees": "forebay.wire.registry",
    "A daemon in this process's care": "forebay.daemon",
    "Errors": "",
}
"""Heading -> the package that its names are defined in; what is an error comes under the last one."""

_SECTION: Final = re.compile(r"(Args|Attributes|Returns|Yields|Raises):$")
_ENTRY: Final = re.compile(r"(\*{0,2}\w[\w.]*): (.*)")
_NO_SIGNATURE: Final = "(...)"


def api_page() -> str:
    """The whole reference, a heading for each public name."""
    return "".join(_chapter(heading) for heading in _HOMES)


def _chapter(heading: str) -> str:
    named = [(name, getattr(forebay, name)) for name in forebay.__all__]
    entries = [_entry(name, thing) for name, thing in named if _heading_of(thing) == heading]
    return f"\n## {heading}\n" + "".join(entries)


def _heading_of(thing: Any) -> str:
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return "Errors"
    homes = ((heading, home) for heading, home in _HOMES.items() if home)
    return next(heading for heading, home in homes if thing.__module__.startswith(home))


def _entry(name: str, thing: Any) -> str:
    is_error = _heading_of(thing) == "Errors"
    told = f"A kind of `{thing.__base__.__name__}`.\n\n" if is_error else _code(f"{name}{signature(thing)}")
    text = f"\n### `{name}`\n\n{told}{text_of(thing)}"
    return text + "".join(_member(name, member, value) for member, value in _members(thing))


def _members(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yields the public methods and properties that a class defines itself."""
    if not inspect.isclass(thing) or issubclass(thing, BaseException):
        return
    for name, value in vars(thing).items():
        is_shown = isinstance(value, property | classmethod | staticmethod) or inspect.isfunction(value)
        if is_shown and not name.startswith("_") and inspect.getdoc(value):
            yield name, value


def _member(owner: str, name: str, value: Any) -> str:
    if isinstance(value, property):
        return f"\n#### `{owner}.{name}`\n\n{text_of(value)}"
    function = inspect.unwrap(getattr(value, "__func__", value))
    prefix = "async " if inspect.iscoroutinefunction(function) else ""
    return f"\n#### `{owner}.{name}`\n\n{_code(f'{prefix}{name}{signature(function)}')}{text_of(value)}"


def signature(thing: Any) -> str:
    """Returns a call's parameters as they are written down, without `self`; a line each where they are many."""
    try:
        found = inspect.signature(thing)
    except ValueError:
        return _NO_SIGNATURE
    parameters = [one for one in found.parameters.values() if one.name not in ("self", "cls")]
    result = found.return_annotation
    arrow = "" if result in (inspect.Signature.empty, None, "None") else f" -> {result}"
    told = list(_told(parameters))
    line = f"({', '.join(told)}){arrow}"
    return line if len(line) <= 90 else "(\n    " + ",\n    ".join(told) + f",\n){arrow}"


def _told(parameters: list[inspect.Parameter]) -> Iterator[str]:
    has_star = False
    for parameter in parameters:
        has_star = has_star or parameter.kind is inspect.Parameter.VAR_POSITIONAL
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not has_star:
            has_star = True
            yield "*"
        yield _parameter(parameter)


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    told = stars.get(parameter.kind, "") + parameter.name
    if parameter.annotation is not inspect.Parameter.empty:
        told += f": {parameter.annotation}"
    if parameter.default is not inspect.Parameter.empty:
        told += f" = {_default(parameter.default)}"
    return told


def _default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    # What has no literal is left to the text: an address would change with each run.
    return "..." if repr(value).startswith("<") else repr(value)


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n\n"


def text_of(thing: Any) -> str:
    """Turns a docstring of Google's style into Markdown: each section a list."""
    lines: list[str] = []
    section = ""
    for line in (inspect.getdoc(thing) or "").splitlines():
        heading = _SECTION.match(line)
        if heading:
            section = heading[1]
            lines += [f"**{section}**", ""]
        elif section and line and not line.startswith(" "):
            section = ""
            lines += ["", line]
        else:
            lines.append(_in_section(line) if section else line)
    return "\n".join(lines).rstrip() + "\n"


def _in_section(line: str) -> str:
    text = line.removeprefix("    ")
    entry = _ENTRY.match(text)
    return f"- `{entry[1]}`: {entry[2]}" if entry else (f"  {text.strip()}" if text.startswith(" ") else text)
