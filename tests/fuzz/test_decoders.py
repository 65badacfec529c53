"""Bytes that somebody else wrote end as a result or as the one error that is meant for them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .seeds import SEEDS
from .targets import TARGETS, run

NAMES = sorted(TARGETS)
GUIDED_S = 5
MEMORY_BYTES = 64 << 20

edits = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from(["put", "cut", "add", "flip", "double"]), st.binary(max_size=8)),
    max_size=6,
)


def edited(data: bytes, changes: list[tuple[float, str, bytes]]) -> bytes:
    """Returns nearly the same bytes."""
    out = bytearray(data)
    for place, what, new in changes:
        at = int(place * len(out))
        match what:
            case "put":
                out[at : at + len(new)] = new
            case "cut":
                del out[at : at + len(new)]
            case "add":
                out[at:at] = new
            case "flip" if at < len(out):
                out[at] ^= 0x80 | len(new)
            case _:
                out[at:at] = out[: 1 << 12]
    return bytes(out)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.binary(max_size=512))
def test_random_bytes_raise_nothing_but_their_own_error(name: str, data: bytes) -> None:
    run(name, data)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=200)
@given(data=st.data())
def test_damaged_good_bytes_raise_nothing_but_their_own_error(name: str, data: st.DataObject) -> None:
    run(name, edited(data.draw(st.sampled_from(SEEDS[name])), data.draw(edits)))


@pytest.mark.parametrize("name", NAMES)
def test_good_bytes_raise_nothing(name: str) -> None:
    decode, _ = TARGETS[name]
    for seed in SEEDS[name]:
        decode(seed)


DEEP = [b"\x91" * (1 << 20), b"\x81\xa1x" * (1 << 18), b"[" * (1 << 20), b'{"a":' * (1 << 18), b"a=" + b"[" * 4000]
HUGE = [
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff" + b"x" * 99,
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("data", DEEP + HUGE, ids=lambda data: f"{len(data)} bytes {data[:5]!r}")
def test_deep_nesting_and_huge_declared_sizes_crash_nothing_and_take_no_memory(name: str, data: bytes) -> None:
    tracemalloc.start()
    try:
        run(name, data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_BYTES


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")
@pytest.mark.parametrize("name", NAMES)
def test_the_guided_harness_finds_nothing_in_a_few_seconds(name: str, tmp_path: Path) -> None:
    harness = Path(__file__).with_name("guided.py")
    command = [sys.executable, str(harness), name, f"-max_total_time={GUIDED_S}", f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + GUIDED_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
