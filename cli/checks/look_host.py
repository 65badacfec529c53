"""Looks at what the host does to a daemon: sessions, mounts, clocks, descriptors; and at what is installed."""

from __future__ import annotations

import os
import platform
import re
import resource
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Final

from forebay.shm.layout import LAYOUT_VERSION
from forebay.version import VERSION
from forebay.wire.message import PROTOCOL_VERSION

from .case import Case
from .findings import Jax, Logout, Versions
from .look_access import user_name

_CONFIG_FOLDERS: Final = ("etc", "run", "usr/local/lib", "usr/lib")
"""Where systemd looks for its files; the first that has one of a name wins. Source: logind.conf(5)."""

_FALSE: Final = frozenset({"no", "n", "false", "f", "off", "0"})
_SYSTEM_UIDS: Final = 999
"""The last one if login.defs does not say otherwise. Source: systemd's users, groups, UIDs and GIDs."""

_PRIVATE: Final = "systemd-private-"


def look_at_logout(case: Case) -> Logout:
    """Looks at systemd-logind's RemoveIPC, and at whether it concerns this user and the pool."""
    uid = os.geteuid()
    removes, source = _removes_ipc(case)
    limit = re.search(r"^\s*SYS_UID_MAX\s+(\d+)", case.text("etc/login.defs"), re.MULTILINE)
    return Logout(
        has_logind=(case.root / "run/systemd/system").is_dir(),
        removes=removes,
        source=source,
        uid=uid,
        max_system_uid=int(limit[1]) if limit else _SYSTEM_UIDS,
        lingers=(case.root / "var/lib/systemd/linger" / (user_name(uid) or str(uid))).exists(),
        is_concerned=Path(os.path.realpath(case.pool)).is_relative_to("/dev/shm"),
    )


def _removes_ipc(case: Case) -> tuple[bool, str]:
    folders = [case.root / folder / "systemd" for folder in _CONFIG_FOLDERS]
    main = next((file for folder in folders if (file := folder / "logind.conf").is_file()), None)
    # Of two with one name the first folder's holds; they are read in the order of their names.
    drop_ins = {
        file.name: file for folder in reversed(folders) for file in (folder / "logind.conf.d").glob("*.conf")
    }
    removes, source = True, ""
    for file in (*([main] if main else []), *(drop_ins[name] for name in sorted(drop_ins))):
        for value in re.findall(r"^\s*RemoveIPC\s*=\s*(\S+)", case.text(str(file)), re.MULTILINE):
            removes, source = value.lower() not in _FALSE, str(file)
    return removes, source


def private_folders(case: Case) -> list[Path]:
    """Returns which of /tmp and /var/tmp are this unit's own, by systemd's PrivateTmp=."""
    found = []
    for line in case.text("proc/self/mountinfo").splitlines():
        fields = line.split(" ")
        if len(fields) > 4 and fields[4] in ("/tmp", "/var/tmp") and _PRIVATE in fields[3]:
            found.append(Path(fields[4]))
    return found


def clock_offsets(case: Case) -> dict[str, str]:
    """Returns seconds and nanoseconds by clock, of this process's time namespace; none where there are none."""
    lines = case.text("proc/self/timens_offsets").splitlines()
    return {fields[0]: " ".join(fields[1:]) for line in lines if len(fields := line.split()) == 3}


def look_at_descriptors(case: Case) -> tuple[int, int, int]:
    """Returns the descriptors that a process may have, the connections they suffice for, and those wanted."""
    from forebay.daemon.server_sockets import connections_of_daemon

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return hard, connections_of_daemon(hard), case.settings.max_connections


def look_at_versions(case: Case) -> Versions:
    """Looks at what is installed, and at what runs."""
    answer = case.running.answer
    return Versions(
        *(VERSION, PROTOCOL_VERSION, LAYOUT_VERSION, platform.python_version()),
        answer.software if answer else None,
    )


def look_at_jax() -> Jax:
    """Looks for jax without importing it."""
    return Jax(_version("jax"), _version("jaxlib"), _needed("jax"))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _needed(name: str) -> str:
    try:
        return least_version(metadata.requires("forebay") or [], name)
    except metadata.PackageNotFoundError:  # run from a folder
        return ""


def least_version(requirements: Iterable[str], name: str) -> str:
    """Returns the least version of a package that a list of requirements allows; empty if it names none."""
    found = (re.match(rf"{name}\s*\(?>=\s*([\d.]+)", text) for text in requirements)
    return next((match[1] for match in found if match), "")
