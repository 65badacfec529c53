"""Packages load their public names when these are first used, and what is loaded is what the type checker sees."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.lazy_names import homes_of, lazy_names

PACKAGES = (
    "forebay",
    "forebay.wire",
    "forebay.shm",
    "forebay.sockets",
    "forebay.orchestrator_client",
    "forebay.daemon",
)
HEAVY = "numpy numcodecs ml_dtypes jax zmq asyncio"
THREADS = """
import importlib, sys, threading
names = [(package, name) for package in sys.argv[1:] for name in importlib.import_module(package).__all__]
together = threading.Barrier(8, timeout=60)
wrong = []
def load(first):
    together.wait()
    for package, name in names[first:] + names[:first]:
        try:
            getattr(sys.modules[package], name)
        except BaseException as error:
            wrong.append(f"{package}.{name}: {error!r}")
threads = [threading.Thread(target=load, args=(len(names) * n // 8,)) for n in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join(60)
sys.exit("\\n".join(wrong) or int(any(thread.is_alive() for thread in threads)))
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_a_home_and_is_there(package: str) -> None:
    loaded = importlib.import_module(package)
    assert sorted(homes_of(package)) == dir(loaded) == sorted(loaded.__all__)
    assert len(set(loaded.__all__)) == len(loaded.__all__)
    for name, home in homes_of(package).items():
        assert getattr(loaded, name) is getattr(importlib.import_module(home.module, package), home.name)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_public_name_is_a_modules_for_that_one_would_be_found_instead_once_it_is_imported(package: str) -> None:
    loaded = importlib.import_module(package)
    modules = {path.stem for path in Path(str(loaded.__file__)).parent.iterdir()}
    assert not modules & set(loaded.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_loads_nothing_heavy(package: str) -> None:
    done = python(f"import sys, {package}; sys.exit(' '.join(set({HEAVY!r}.split()) & set(sys.modules)) or 0)")
    assert (done.returncode, done.stderr) == (0, "")


def test_threads_that_load_all_names_at_the_same_time_find_each_of_them() -> None:
    # The root's trainer is another matter: it is not loaded like this, and takes jax.
    done = python(THREADS, *PACKAGES[1:])
    assert (done.returncode, done.stderr) == (0, "")


def test_all_names_can_be_imported_at_once() -> None:
    done = python("from forebay.wire import *; decode_chunk, Status, HostError")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_module_of_the_package_is_still_imported_by_its_name() -> None:
    done = python("from forebay.wire import codec_names; import forebay.shm.locks; codec_names.RAW")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_name_that_is_none_is_told_with_its_package() -> None:
    load, _ = lazy_names("forebay.wire")
    with pytest.raises(AttributeError, match=r"module 'forebay\.wire' has no attribute 'Nothing'"):
        load("Nothing")
    done = python("from forebay.wire import Nothing")
    assert "cannot import name 'Nothing' from 'forebay.wire'" in done.stderr


def test_a_name_that_needs_an_extra_says_which() -> None:
    done = python("import sys; sys.modules['jax'] = None; from forebay import attach")
    assert "ImportError: forebay.attach needs jax: pip install 'forebay[trainer]'" in done.stderr
