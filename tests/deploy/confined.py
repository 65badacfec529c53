"""Runs a command under what a unit file forbids, as far as a process can lay that upon itself.

These are its system call filter, address families, memory that is writable and executable, capabilities, umask,
and a file system that is read-only but for the mounts below it. Users and groups stay as they are.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from unit_file import values  # type: ignore[import-not-found]

_CLONE_NEWNS = 0x0002_0000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_SET_MDWE = 24, 38, 65
_LAST_CAPABILITY = 40
_ALLOW, _NOT_EQUAL = 0x7FFF_0000, 1


def _fail_with(number: int) -> int:
    return 0x0005_0000 | number


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("datum_a", ctypes.c_uint64),
        ("datum_b", ctypes.c_uint64),
    )


def calls_of(name: str) -> Iterator[str]:
    """Yields the system calls that a name in a filter stands for."""
    if not name.startswith("@"):
        yield name
        return
    told = subprocess.run(["systemd-analyze", "syscall-filter", name], check=True, capture_output=True, text=True)
    for line in told.stdout.splitlines()[1:]:
        if word := line.partition("#")[0].strip():
            yield from calls_of(word)


def allowed_calls(unit: Path) -> set[str]:
    """Returns the system calls that a unit's filters leave. Source: systemd.exec(5), SystemCallFilter."""
    allowed = set(calls_of("@default"))
    for value in values(unit, "SystemCallFilter"):
        calls = {call for name in value.removeprefix("~").split() for call in calls_of(name)}
        allowed = allowed - calls if value.startswith("~") else allowed | calls
    return allowed


def load_filter(calls: set[str], families: list[int]) -> None:
    """Has the kernel refuse other system calls, and sockets of other families."""
    seccomp = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    seccomp.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(seccomp.seccomp_init(_fail_with(errno.EPERM)))
    numbers = {call: seccomp.seccomp_syscall_resolve_name(call.encode()) for call in calls}
    for call, number in numbers.items():
        if number >= 0 and call != "socket":
            assert seccomp.seccomp_rule_add(context, _ALLOW, number, 0) == 0, call
    for family in families:
        same = _Comparison(0, 4, family, 0)
        assert seccomp.seccomp_rule_add_array(context, _ALLOW, numbers["socket"], 1, ctypes.byref(same)) == 0
    assert seccomp.seccomp_load(context) == 0


def confine(unit: Path) -> None:
    """Lays upon this process what a unit forbids."""
    libc = ctypes.CDLL(None, use_errno=True)
    os.umask(int(values(unit, "UMask")[0], 8))
    if os.geteuid() == 0:
        assert libc.unshare(_CLONE_NEWNS) == 0, os.strerror(ctypes.get_errno())
        assert libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) == 0
        assert libc.mount(None, b"/", None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY, None) == 0
        for capability in range(_LAST_CAPABILITY + 1):
            libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    assert libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(_PR_SET_MDWE, 1, 0, 0, 0) == 0, "the kernel is older than 6.3"
    families = [getattr(socket, name) for name in values(unit, "RestrictAddressFamilies")[0].split()]
    load_filter(allowed_calls(unit), families)


if __name__ == "__main__":
    confine(Path(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
