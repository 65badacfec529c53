"""What the tests of all packages share."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from forebay.shm import LOCK_NAME, is_held

# Before anybody imports jax: several virtual devices to shard over.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

settings.register_profile("forebay", deadline=None, max_examples=100)
settings.load_profile("forebay")

_SHM = Path("/dev/shm")
_PRIVATE_PREFIX = "forebay-test-"
_OTHERS_S = 30.0


def _left_in_shm() -> set[Path]:
    # The names that Forebay gives by itself; where a pool is held, somebody's daemon lives.
    entries = _SHM.glob(f"forebay-{os.geteuid()}-*")
    return {path for path in entries if not any(is_held(lock) for lock in path.rglob(LOCK_NAME))}


def _assert_nothing_is_left(before: set[Path]) -> None:
    # Other tests run beside these: what they just make or remove is held, or gone, in a moment.
    deadline = time.monotonic() + _OTHERS_S
    while left := _left_in_shm() - before:
        assert time.monotonic() < deadline, f"left in shared memory: {sorted(left)}"
        time.sleep(0.1)


@pytest.fixture
def shm_dir() -> Iterator[Path]:
    """A private folder in shared memory; the test fails if it leaves anything of Forebay's beside it."""
    before = _left_in_shm()
    folder = Path(tempfile.mkdtemp(prefix=_PRIVATE_PREFIX, dir=_SHM))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
    _assert_nothing_is_left(before)
