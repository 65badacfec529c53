"""What a setting is: how it is declared, read from text and checked, the same for every process.

A process's settings are one frozen dataclass, in a module with `from __future__ import annotations`. Its fields
are made by `setting`, typed bool, int, float or str, and checked by `check_settings` in `__post_init__`. Where the
values come from is that process's business: this module reads no environment and no file.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import SettingError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

S = TypeVar("S", bound="DataclassInstance")

_MAX_IPC_PATH_BYTES = 107
"""sockaddr_un.sun_path less its final zero."""


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """What is known of one setting beside its name, type and default.

    Attributes:
        meaning: One line, with the unit.
        low: Smallest value, or None where there is no order.
        high: Largest value, or None.
        source: Where the default came from.
        choices: All values there are, or empty where it is not a choice.
        variable: Its environment variable where that is not `FOREBAY_` and the name in capitals, else empty.
        reloadable: Whether a running process can take a new value over.
    """

    meaning: str
    low: float | None = None
    high: float | None = None
    source: str = "chosen"
    choices: tuple[str, ...] = ()
    variable: str = ""
    reloadable: bool = False

    @property
    def limit(self) -> str:
        """Its choices or its range, in words; empty where its type is the only limit."""
        if self.low is not None and self.high is not None:
            return f"{self.low} to {self.high}"
        return ", ".join(self.choices)

    def allows(self, value: Any) -> bool:
        """Whether a value of the right type is among the choices and within the range."""
        if self.low is not None and self.high is not None:
            return bool(self.low <= value <= self.high)
        return not self.choices or value in self.choices


def setting(
    default: Any,
    meaning: str,
    low: float | None = None,
    high: float | None = None,
    source: str = "chosen",
    *,
    choices: tuple[str, ...] = (),
    variable: str = "",
    reloadable: bool = False,
) -> Any:
    """Makes the dataclass field of one setting; the rest is as in `Setting`.

    Args:
        default: Its default, or a function that makes it.
        meaning: See `Setting`.
        low: See `Setting`.
        high: See `Setting`.
        source: See `Setting`.
        choices: See `Setting`.
        variable: See `Setting`.
        reloadable: See `Setting`.
    """
    metadata = {"setting": Setting(meaning, low, high, source, choices, variable, reloadable)}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def setting_of(field: dataclasses.Field[Any]) -> Setting:
    """Returns what is known of a field that `setting` made."""
    known: Setting = field.metadata["setting"]
    return known


def variable_of(field: dataclasses.Field[Any]) -> str:
    """Returns the name of a setting's environment variable."""
    return setting_of(field).variable or f"FOREBAY_{field.name.upper()}"


def read_variables(settings_type: type[DataclassInstance], environment: Mapping[str, str]) -> dict[str, str]:
    """Picks a dataclass's settings out of an environment.

    Returns:
        Texts by setting name, of those whose variable is there; also of one that is empty.
    """
    variables = {field.name: variable_of(field) for field in dataclasses.fields(settings_type)}
    return {name: environment[variable] for name, variable in variables.items() if variable in environment}


_WORDS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


_KINDS: dict[str, tuple[str, type | tuple[type, ...], Callable[[str], Any]]] = {
    "bool": ("true or false", bool, lambda text: _WORDS.get(text.lower(), text)),
    "int": ("an integer", int, int),
    "float": ("a number", (int, float), float),
    "str": ("a text", str, str),
}
"""Kind of a setting -> what it is called, the types that a value of it has, and how it is read from text."""


def parse_settings(settings_type: type[DataclassInstance], values: Mapping[str, Any]) -> dict[str, Any]:
    """Turns given values into keyword arguments for a dataclass of settings.

    Args:
        settings_type: The dataclass.
        values: By setting name: texts, or values that have a type already, as in a TOML file.

    Returns:
        The same names; what cannot be read as its setting's type is left as it is, for `check_settings` to refuse.
    """
    kinds = {field.name: str(field.type) for field in dataclasses.fields(settings_type)}
    return {name: _parse(kinds[name], value) for name, value in values.items()}


def _parse(kind: str, value: Any) -> Any:
    with contextlib.suppress(ValueError, OverflowError):
        if isinstance(value, str):
            return _KINDS[kind][2](value)
        if kind == "float" and type(value) is int:
            return float(value)
    return value


def settings_from(settings_type: type[S], *sources: Mapping[str, Any]) -> S:
    """Makes a process's settings out of what several sources say.

    Args:
        settings_type: The dataclass.
        *sources: Values by setting name, the weightiest last; None means not given.

    Raises:
        SettingError: A value is wrong.
    """
    given = {name: value for source in sources for name, value in source.items() if value is not None}
    return settings_type(**parse_settings(settings_type, given))


def check_settings(settings: DataclassInstance) -> None:
    """Checks type, range and choices of every field; for `__post_init__`.

    Raises:
        SettingError: A value is wrong; one line names setting, value and limit, and the environment variable where
            the setting's name does not tell it.
    """
    for field in dataclasses.fields(settings):
        _check(field, getattr(settings, field.name))


def check_endpoint(name: str, address: str) -> None:
    """Checks that an address is one that a socket can have.

    Args:
        name: Of the setting that holds it.
        address: What it holds.

    Raises:
        SettingError: It is neither ipc nor tcp, or the path is longer than a Unix socket's may be.
    """
    if not address.startswith(("ipc://", "tcp://")):
        raise SettingError(f"setting {name}", got=address, limit="an ipc:// or tcp:// address")
    path = address.removeprefix("ipc://")
    path_bytes = len(path.encode(errors="surrogateescape"))
    if path != address and path_bytes > _MAX_IPC_PATH_BYTES:
        raise SettingError(
            f"setting {name}",
            got=f"a path of {path_bytes} bytes, {path}",
            limit=f"{_MAX_IPC_PATH_BYTES} bytes for a Unix socket",
            remedy="choose a shorter folder, for example under /run",
        )


def _check(field: dataclasses.Field[Any], value: Any) -> None:
    known = setting_of(field)
    wanted, types, _ = _KINDS[str(field.type)]
    if not isinstance(value, types) or (isinstance(value, bool) and types is not bool):
        limit = ", ".join(known.choices) or wanted
    elif not known.allows(value):
        limit = known.limit
    else:
        return
    # An empty text comes from a variable that is set to nothing, mostly; nobody would look for it there.
    is_named = known.variable or value == ""
    name = f"{field.name} ({variable_of(field)})" if is_named else field.name
    raise SettingError(f"setting {name}", got="None" if value is None else value, limit=limit)
