from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest
from flax import struct as flax_struct

from forebay.wire import (
    RecordType,
    TreeError,
    TreeRegistry,
    UsageError,
    default_registry,
    flatten,
    register_type,
    unflatten,
)

from .trees import LIMITS


class Pair(NamedTuple):
    first: Any
    second: Any = 2


@dataclasses.dataclass
class Counting:
    """Counts how often its own construction code runs."""

    tokens: Any
    doubled: Any = dataclasses.field(init=False)
    built: int = dataclasses.field(default=0, compare=False)

    def __post_init__(self) -> None:
        self.built += 1
        self.doubled = self.tokens * 2


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    tokens: Any

    def __post_init__(self) -> None:
        if not isinstance(self.tokens, str):
            raise TypeError("would refuse a device array")


class FlaxState(flax_struct.PyTreeNode):  # type: ignore[no-untyped-call]
    params: Any
    step: int = flax_struct.field(pytree_node=False, default=0)  # type: ignore[no-untyped-call]


@flax_struct.dataclass
class FlaxData:
    params: Any


class HandMade(Pair):
    """A namedtuple with a constructor of its own."""

    __slots__ = ()

    def __new__(cls) -> HandMade:
        raise AssertionError("the receiver must not run it")


def there_and_back(registry: TreeRegistry, tree: Any, leaves: list[Any]) -> Any:
    return unflatten(flatten(tree, registry=registry, limits=LIMITS).structure, leaves, registry=registry)


@pytest.mark.parametrize("cls", [Pair, Counting, FrozenSlots, FlaxState, FlaxData], ids=lambda cls: cls.__name__)
def test_a_registered_class_comes_back_as_itself(cls: type) -> None:
    registry = TreeRegistry()
    assert registry.register(cls) is cls
    record = registry.of_class(cls, "x")
    assert registry.of_name(cls.__name__, record.fields, "x") is record
    tree = record.build([str(index) for index, _ in enumerate(record.fields)])
    got = there_and_back(registry, {"a": tree}, [])["a"]
    assert type(got) is cls
    assert got == tree


def test_a_record_is_built_without_running_the_classs_own_code() -> None:
    registry = TreeRegistry()
    registry.register(Counting)
    registry.register(FrozenSlots)
    registry.register(HandMade)
    counting = Counting(np.arange(2))
    got = there_and_back(registry, counting, ["left", "right"])
    assert (got.tokens, got.doubled, got.built) == ("left", "right", counting.built)

    device_array = object()
    assert there_and_back(registry, FrozenSlots("x"), []) == FrozenSlots("x")
    assert registry.of_class(FrozenSlots, "x").build([device_array]).tokens is device_array
    made = registry.of_class(HandMade, "x").build([1, 2])
    assert type(made) is HandMade
    assert made == (1, 2)


def test_a_frozen_class_is_still_frozen() -> None:
    record = RecordType("FrozenSlots", FrozenSlots, ("tokens",))
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.build([1]).tokens = 2


def test_a_record_takes_exactly_its_fields() -> None:
    record = RecordType("FrozenSlots", FrozenSlots, ("tokens",))
    for values in ([], [1, 2]):
        with pytest.raises(ValueError, match="zip"):
            record.build(values)


def test_two_classes_cannot_have_one_name() -> None:
    registry = TreeRegistry()
    registry.register(Pair)
    other = dataclasses.make_dataclass("Pair", ["a", "b", "c"])
    with pytest.raises(UsageError, match=r"'Pair' is taken.*another name="):
        registry.register(other)
    # Nothing has moved.
    assert registry.of_name("Pair", ("first", "second"), "x").cls is Pair
    with pytest.raises(TreeError):
        registry.of_class(other, "x")
    registry.register(other, name="OtherPair")
    assert registry.of_name("OtherPair", ("a", "b", "c"), "x").cls is other


def test_a_class_may_be_registered_twice() -> None:
    registry = TreeRegistry()
    registry.register(Pair)
    registry.register(Pair)
    assert repr(registry) == "TreeRegistry(Pair)"


@pytest.mark.parametrize("cls", [int, dict, str, type("Plain", (), {}), type("Tuple", (tuple,), {})])
def test_only_dataclasses_and_namedtuples_can_be_registered(cls: type) -> None:
    registry = TreeRegistry()
    with pytest.raises(UsageError, match="only dataclasses and namedtuples"):
        registry.register(cls)
    assert repr(registry) == "TreeRegistry()"


def test_an_unregistered_class_is_refused_by_path_and_name() -> None:
    with pytest.raises(TreeError, match=r"\['a'\] is of a class.*Pair.*register_type"):
        flatten({"a": Pair(1)}, registry=TreeRegistry(), limits=LIMITS)


def test_a_refused_class_is_told_what_may_be_there_instead_in_words() -> None:
    registry = TreeRegistry()
    words = "dict, list, tuple, numpy arrays, static values and registered classes"
    for names in ("none yet", "Pair"):
        with pytest.raises(TreeError) as caught:
            flatten({"a": FrozenSlots("x")}, registry=registry, limits=LIMITS)
        assert caught.value.limit == f"{words} ({names})"
        with pytest.raises(TreeError) as caught:
            registry.of_name("Other", (), "['a']")
        assert caught.value.limit == f"registered classes ({names})"
        registry.register(Pair)


class Tensor:
    def __array__(self) -> Any:
        return np.zeros(2)


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (Pair(1), "call forebay.register_type(cls) on both sides"),
        (Tensor(), "convert it with numpy.asarray"),
        (b"abc", "pass numpy.frombuffer(value, numpy.uint8)"),
        ({1, 2}, "convert it to one of these"),
        (collections.OrderedDict(), "convert it to one of these"),
        (object(), "convert it to one of these"),
    ],
)
def test_the_advice_about_a_refused_class_can_be_followed(value: object, remedy: str) -> None:
    with pytest.raises(TreeError) as caught:
        flatten({"a": value}, registry=TreeRegistry(), limits=LIMITS)
    assert caught.value.remedy == remedy


def test_a_subclass_of_a_registered_class_is_not_taken_for_it() -> None:
    registry = TreeRegistry()
    registry.register(Pair)
    with pytest.raises(TreeError, match="HandMade"):
        flatten(tuple.__new__(HandMade, (1, 2)), registry=registry, limits=LIMITS)


@pytest.mark.parametrize("fields", [(), ("first",), ("second", "first"), ("first", "second", "third")])
def test_other_fields_than_the_senders_are_refused(fields: tuple[str, ...]) -> None:
    registry = TreeRegistry()
    registry.register(Pair)
    with pytest.raises(TreeError, match=r"\['a'\] is a Pair with other fields.*limit \('first', 'second'\)"):
        registry.of_name("Pair", fields, "['a']")


def test_a_name_off_the_wire_is_looked_up_and_never_imported() -> None:
    for name in ("os.system", "builtins.eval", "Pair", "", "\x1b"):
        with pytest.raises(TreeError, match="not registered here"):
            TreeRegistry().of_name(name, (), "x")


def test_register_type_uses_the_default_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_registry, "_by_class", {})
    monkeypatch.setattr(default_registry, "_by_name", {})
    assert register_type(Pair, name="forebay.tests.Pair") is Pair
    assert default_registry.of_class(Pair, "x").name == "forebay.tests.Pair"
