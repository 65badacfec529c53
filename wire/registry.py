"""Which classes may be containers in a tree, by an explicit registry on both sides.

A name off the wire selects a registered class or nothing; it is never imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

from .errors import TreeError, UsageError

T = TypeVar("T", bound=type)


@dataclasses.dataclass(frozen=True, slots=True)
class RecordType:
    """A registered class: its name on the wire and its fields in order."""

    name: str
    cls: type
    fields: tuple[str, ...]

    def build(self, values: Sequence[Any]) -> Any:
        """Makes an instance that holds exactly `values`, without running the class's own `__init__`.

        A `__post_init__` that checks or converts would otherwise see device arrays or run twice.
        """
        if issubclass(self.cls, tuple):
            return tuple.__new__(self.cls, values)
        instance = object.__new__(self.cls)
        for field, value in zip(self.fields, values, strict=True):
            object.__setattr__(instance, field, value)
        return instance


class TreeRegistry:
    """The dataclasses (flax.struct's too) and namedtuples that keep their type on the way."""

    def __init__(self) -> None:
        self._by_class: dict[type, RecordType] = {}
        self._by_name: dict[str, RecordType] = {}

    def __repr__(self) -> str:
        return f"TreeRegistry({', '.join(sorted(self._by_name))})"

    @property
    def _known(self) -> str:
        return f"registered classes ({', '.join(sorted(self._by_name)) or 'none yet'})"

    def register(self, cls: T, *, name: str | None = None) -> T:
        """Registers a class; usable as a decorator.

        Args:
            cls: A dataclass or namedtuple.
            name: Its name on the wire; default the class's own name, without its module, because the two
                sides often import it from different places.

        Returns:
            The class, unchanged.

        Raises:
            UsageError: The class is of neither kind, or another class has the name.
        """
        record = RecordType(name or cls.__name__, cls, _fields_of(cls))
        present = self._by_name.get(record.name)
        if present is not None and present.cls is not cls:
            raise UsageError(
                f"the tree name {record.name!r} is taken",
                got=cls,
                limit=f"one class a name; it belongs to {present.cls!r}",
                remedy="pass another name= on both sides",
            )
        self._by_class[cls] = record
        self._by_name[record.name] = record
        return cls

    def of_class(self, cls: type, path: str) -> RecordType:
        """Finds the record type of a class that occurs in a tree at `path`.

        Raises:
            TreeError: The class is not registered.
        """
        try:
            return self._by_class[cls]
        except KeyError:
            raise TreeError(
                f"{path} is of a class that is not registered",
                got=f"{cls.__module__}.{cls.__qualname__}",
                limit=f"dict, list, tuple, numpy arrays, static values and {self._known}",
                remedy=_way_to_send(cls),
            ) from None

    def of_name(self, name: str, fields: tuple[str, ...], path: str) -> RecordType:
        """Finds the record type that a manifest names at `path`.

        Raises:
            TreeError: No class has the name, or its fields differ from the sender's.
        """
        record = self._by_name.get(name)
        if record is None:
            raise TreeError(
                f"{path} is of a class that is not registered here",
                got=name,
                limit=self._known,
                remedy="call forebay.register_type(cls) before attaching",
            )
        if record.fields != fields:
            raise TreeError(
                f"{path} is a {name} with other fields than here",
                got=fields,
                limit=record.fields,
                remedy="use the same class on both sides",
            )
        return record


def _fields_of(cls: type) -> tuple[str, ...]:
    if not _is_record(cls):
        raise UsageError(
            "only dataclasses and namedtuples can be registered", got=cls, remedy="make it one, or use a dict"
        )
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    names: tuple[str, ...] = cls._fields  # type: ignore[attr-defined]
    return names


def _is_record(cls: type) -> bool:
    return dataclasses.is_dataclass(cls) or (
        issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)
    )


def _way_to_send(cls: type) -> str:
    if _is_record(cls):
        return "call forebay.register_type(cls) on both sides"
    if hasattr(cls, "__array__"):
        return "convert it with numpy.asarray"
    if issubclass(cls, bytes | bytearray | memoryview):
        return "pass numpy.frombuffer(value, numpy.uint8)"
    return "convert it to one of these"


default_registry = TreeRegistry()
"""The registry that is used where none is passed."""


def register_type(cls: T, *, name: str | None = None) -> T:
    """Registers a class in the default registry; see `TreeRegistry.register`."""
    return default_registry.register(cls, name=name)
