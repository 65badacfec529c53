"""What the tests of all packages share."""

from __future__ import annotations

import os
import shutil
import tempfile
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


def _left_in_shm() -> set[Path]:
    # The names that Forebay gives by itself; a pool that is held is somebody's living daemon.
    entries = _SHM.glob(f"forebay-{os.geteuid()}-*")
    return {path for path in entries if not (path.is_dir() and is_held(path / LOCK_NAME))}


@pytest.fixture
def shm_dir() -> Iterator[Path]:
    """A private folder in shared memory; the test fails if it leaves anything of Forebay's beside it."""
    before = _left_in_shm()
    folder = Path(tempfile.mkdtemp(prefix=_PRIVATE_PREFIX, dir=_SHM))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
    assert _left_in_shm() <= before
