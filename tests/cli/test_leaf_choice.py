"""PATH[SLICE] means the leaf that is shown so, and the part that numpy would give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forebay.cli.leaf_choice import choose_leaf, short
from forebay.cli.tree_words import tree_words
from forebay.wire import UNLIMITED, Manifest, UsageError, default_registry, describe, flatten


def manifest_of(tree: Any) -> Manifest:
    return describe(flatten(tree, registry=default_registry, limits=UNLIMITED), UNLIMITED)


TREE = {"ids": np.zeros((4, 6, 2)), "a": {"b": [np.zeros(3), np.zeros(())]}, "idset": np.zeros(1), "n": (1, None)}
MANIFEST = manifest_of(TREE)
ARRAY = np.arange(48).reshape(4, 6, 2)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("ids", "['ids']"),
        ("['ids']", "['ids']"),
        ("idset", "['idset']"),
        ("a.b.0", "['a']['b'][0]"),
        ("a.b.0[1:]", "['a']['b'][0]"),
        ("['a']['b'][1]", "['a']['b'][1]"),
    ],
)
def test_a_leaf_is_found_by_its_path_or_in_short(text: str, path: str) -> None:
    assert MANIFEST.paths[choose_leaf(text, MANIFEST)[0]] == path


def test_an_array_alone_is_the_root() -> None:
    alone = manifest_of(np.zeros((2, 2)))
    assert choose_leaf("<root>[0]", alone) == (0, (0,))


@pytest.mark.parametrize(
    "index", ["0", "-1", "1:3", ":,2", "::2,-1", "...,0", "1,...,1", "1,2,1", "3:1:-1", "..."]
)
def test_a_slice_is_numpys(index: str) -> None:
    _, found = choose_leaf(f"ids[{index}]", MANIFEST)
    assert np.array_equal(ARRAY[found], eval(f"ARRAY[{index}]"))  # noqa: S307 - what Python makes of it is the point


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("idz", "no leaf has that path"),
        ("", "no leaf has that path"),
        ("a", "no leaf has that path"),
        ("ids[", "slice"),
        ("ids[]", "slice"),
        ("ids[x]", "slice"),
        ("ids[-]", "slice"),
        ("ids[::0]", "slice"),
        ("ids[4]", "outside"),
        ("ids[-5]", "outside"),
        ("ids[...,2]", "outside"),
        ("ids[0,0,0,0]", "does not fit"),
        ("ids[...,...]", "does not fit"),
        ("a.b.1[0]", "does not fit"),
        ("ids[99999999999999999999999]", "outside"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        choose_leaf(text, MANIFEST)


def test_what_may_be_meant_twice_is_refused_in_short_and_found_in_full() -> None:
    twice = manifest_of({"a": {"b": np.zeros(1)}, "a.b": np.zeros(2)})
    with pytest.raises(UsageError, match="several leaves"):
        choose_leaf("a.b", twice)
    assert choose_leaf("['a.b']", twice)[0] == 1


def test_no_path_is_longer_in_short() -> None:
    assert [short(path) for path in MANIFEST.paths] == ["ids", "a.b.0", "a.b.1", "idset"]


def test_a_tree_is_written_as_python_writes_it_and_drives_nothing() -> None:
    tree = {"x": np.zeros((2, 0), np.int16), "l": [np.zeros(()), ("v\x1b[1m", 2)], "t": (np.zeros(1),)}
    words = tree_words(manifest_of(tree))
    assert words == r"{'x': int16[2, 0], 'l': [float64[], ('v\x1b[1m', 2)], 't': (float64[1],)}"
