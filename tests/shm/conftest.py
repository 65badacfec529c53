"""Fixtures for shared memory: other processes, and a mount that is nearly full."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .processes import Child, Spawn

_MOUNT = ("mount", "-t", "tmpfs", "-o", "size=8m", "forebay-test")
_UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts processes that do not outlive the test."""
    with contextlib.ExitStack() as children:

        def start(code: str, *arguments: object, wrapper: tuple[str, ...] = ()) -> Child:
            return children.enter_context(Child(code, *arguments, wrapper=wrapper))

        yield start


@pytest.fixture
def small_mount(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 8 MiB of the test's own."""
    if not _may_mount():
        if not _may_unshare():
            pytest.skip("mounting a tmpfs needs root or unprivileged user namespaces")
        yield tmp_path  # unused: pytest_pyfunc_call runs the test in a process that may mount
        return
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run([*_MOUNT, folder], check=True)
    try:
        yield folder
    finally:
        # Lazily, because views that a failed test still holds would keep it.
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    """Runs a test that mounts in its own namespaces where this process may not mount."""
    if "small_mount" not in pyfuncitem.fixturenames or _may_mount():
        return None
    pytest_in_here = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    done = subprocess.run(
        [*_UNSHARE, *pytest_in_here],
        check=False,
        capture_output=True,
        text=True,
        cwd=pyfuncitem.config.rootpath,
        env=os.environ | {"PYTEST_DEBUG_TEMPROOT": str(pyfuncitem.funcargs["tmp_path"])},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return True


@functools.cache
def _may_mount() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.run([*_MOUNT, folder], check=False, capture_output=True).returncode != 0:
            return False
        subprocess.run(["umount", folder], check=True)
    return True


@functools.cache
def _may_unshare() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        mount = f"import subprocess; subprocess.run({[*_MOUNT, folder]!r}, check=True)"
        command = [*_UNSHARE, sys.executable, "-c", mount]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
