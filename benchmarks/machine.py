"""What a benchmark ran on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Final

import msgspec
import zmq

from forebay.version import VERSION

_SOFTWARE: Final = ("numpy", "pyzmq", "numcodecs", "xxhash", "jax", "grpcio", "pyarrow")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine and what runs on it.

    Attributes:
        processor: Its name, as the kernel tells it.
        cores: Processors that this process may use.
        memory_gib: GiB of memory.
        kernel: Release of the kernel.
        huge_pages: Whether shared memory may have huge pages, as the kernel tells it.
        software: Versions of what matters.
    """

    processor: str
    cores: int
    memory_gib: float
    kernel: str
    huge_pages: str
    software: dict[str, str]


def this_machine() -> Machine:
    """Looks at the machine that this runs on."""
    software = {"forebay": VERSION, "python": platform.python_version(), "libzmq": zmq.zmq_version()}
    return Machine(
        processor=_field("/proc/cpuinfo", "model name"),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30), 1),
        kernel=platform.release(),
        huge_pages=_chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        software=software | {name: version for name in _SOFTWARE if (version := _version(name))},
    )


def _field(file: str, name: str) -> str:
    lines = _read(file).splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "unknown")


def _chosen(file: str) -> str:
    """Returns the word in brackets."""
    return _read(file).partition("[")[2].partition("]")[0] or "unknown"


def _read(file: str) -> str:
    try:
        return Path(file).read_text()
    except OSError:
        return ""


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
