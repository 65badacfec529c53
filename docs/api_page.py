"""Makes the reference of the Python API from the signatures and docstrings of the package's public names."""

from __future__ import annotations

import contextlib
import enum
import inspect
import re
import sys
import typing
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

import forebay

_HOMES: Final = {
    "Sending": "forebay.orchestrator_client",
    "Training": "forebay.trainer",
    "Trees": "forebay.wire.registry",
    "A daemon in this process's care": "forebay.daemon",
    "States, codes and status": "forebay.wire",
    "Errors": "",
}
"""Heading -> the package that its names are defined in, the first that fits; errors come under the last one."""

_SECTION: Final = re.compile(r"(Args|Attributes|Returns|Yields|Raises):$")
_ENTRY: Final = re.compile(r"(\*{0,2}\w[\w.]*): (.*)")
_NAME: Final = re.compile(r"(?<![\w.'])[A-Z]\w*")
_NO_SIGNATURE: Final = "(...)"
_OTHERS: Final = """
## Other names in signatures

`import forebay` does not offer these, and they may change. They are what calls return or hand to you, or say what
something that you pass has to look like.

"""


def api_page() -> str:
    """The whole reference, a heading for each public name, and where the other names are that signatures have."""
    others = dict(sorted(_others().items()))
    rows = [f"- `{name}`, in `{module}`{told}\n" for name, (module, told) in others.items()]
    return "".join(_chapter(heading) for heading in _HOMES) + _OTHERS + "".join(rows)


def _public() -> list[tuple[str, Any]]:
    return [(name, getattr(forebay, name)) for name in forebay.__all__]


def _chapter(heading: str) -> str:
    entries = [_entry(name, thing) for name, thing in _public() if heading_of(thing) == heading]
    return f"\n## {heading}\n" + "".join(entries)


def heading_of(thing: Any) -> str:
    """Returns the heading that a public name comes under.

    Raises:
        LookupError: There is none for where it is defined.
    """
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return "Errors"
    for heading, home in _HOMES.items():
        if home and f"{thing.__module__}.".startswith(f"{home}."):
            return heading
    raise LookupError(f"{thing.__name__} of {thing.__module__} has no heading; add one to _HOMES in {__file__}")


def _entry(name: str, thing: Any) -> str:
    text = f"\n### `{name}`\n\n{_how_to_use(name, thing)}{text_of(thing)}"
    return text + "".join(_member(name, member, value) for member, value in _members(thing))


def _how_to_use(name: str, thing: Any) -> str:
    if heading_of(thing) == "Errors":
        return f"A kind of `{thing.__base__.__name__}`.\n\n"
    if inspect.isclass(thing) and issubclass(thing, enum.Enum):
        # As the formatter has it, which reads the pages too.
        return _code("\n".join(f'{name}.{member.name} = "{member.value}"' for member in thing))
    return _code(f"{name}{signature(thing)}")


def _members(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yields the public methods and properties that a class defines itself."""
    if not inspect.isclass(thing) or issubclass(thing, BaseException):
        return
    for name, value in vars(thing).items():
        is_shown = isinstance(value, property | classmethod | staticmethod) or inspect.isfunction(value)
        if is_shown and not name.startswith("_") and inspect.getdoc(value):
            yield name, value


def _member(owner: str, name: str, value: Any) -> str:
    return f"\n#### `{owner}.{name}`\n\n{_code(how_to_call(name, value))}{text_of(value)}"


def how_to_call(name: str, member: Any) -> str:
    """Returns a method or property with its types, and the decorator that says how it is used."""
    if isinstance(member, property):
        return f"@property\n{name}{_arrow(inspect.signature(_function_of(member)))}"
    decorator = f"@{type(member).__name__}\n" if isinstance(member, classmethod | staticmethod) else ""
    function = _function_of(member)
    prefix = "async " if inspect.iscoroutinefunction(function) else ""
    return f"{decorator}{prefix}{name}{signature(function)}"


def _function_of(member: Any) -> Any:
    return member.fget if isinstance(member, property) else inspect.unwrap(getattr(member, "__func__", member))


def signature(thing: Any) -> str:
    """Returns a call's parameters as they are written down, without `self`; a line each where they are many."""
    try:
        found = inspect.signature(thing)
    except ValueError:
        return _NO_SIGNATURE
    parameters = [one for one in found.parameters.values() if one.name not in ("self", "cls")]
    arrow = _arrow(found)
    told = list(_told(parameters))
    line = f"({', '.join(told)}){arrow}"
    return line if len(line) <= 90 else "(\n    " + ",\n    ".join(told) + f",\n){arrow}"


def _arrow(found: inspect.Signature) -> str:
    result = found.return_annotation
    return "" if result in (inspect.Signature.empty, None, "None") else f" -> {_type(result)}"


def _type(annotation: Any) -> str:
    """Returns a type as the code has it: what is no text any more loses the modules before its names."""
    if isinstance(annotation, str):
        return annotation
    return re.sub(r"\w+\.(?=\w)", "", inspect.formatannotation(annotation))


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
        told += f": {_type(parameter.annotation)}"
    if parameter.default is not inspect.Parameter.empty:
        told += f" = {_default(parameter.default)}"
    return told


def _default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    # What has no literal is left to the text: an address would change with each run.
    return "..." if repr(value).startswith("<") else repr(value)


def _others() -> dict[str, tuple[str, str]]:
    """Returns where the names of Forebay's are that signatures have and the package does not offer."""
    found: dict[str, tuple[str, str]] = {}
    for _, thing in _public():
        for function in (thing, *(_function_of(member) for _, member in _members(thing))):
            for name in _names_in(function):
                home = _home_of(name, sys.modules[function.__module__])
                if home is not None and name not in forebay.__all__:
                    found[name] = home
    return found


def _names_in(thing: Any) -> Iterator[str]:
    if inspect.isclass(thing) and issubclass(thing, enum.Enum | BaseException):
        return
    with contextlib.suppress(ValueError):
        called = inspect.signature(thing)
        for annotation in (called.return_annotation, *(one.annotation for one in called.parameters.values())):
            yield from _NAME.findall(_type(annotation))


def _home_of(name: str, module: ModuleType) -> tuple[str, str] | None:
    """Returns the module that defines a name, and what an alias stands for; None of what is not Forebay's."""
    thing = vars(module).get(name)
    if isinstance(thing, typing.TypeVar):
        return None
    if typing.get_origin(thing) is not None:
        return module.__name__, f": `{_type(thing)}`"
    if thing is None:
        # Imported for the type checker alone.
        loaded = [vars(one).get(name) for key, one in sys.modules.items() if key.startswith("forebay.")]
        thing = next((one for one in loaded if one is not None), None)
    home = getattr(thing, "__module__", None) or ""
    return (home, "") if home.startswith("forebay.") else None


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
