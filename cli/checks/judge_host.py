"""Judges what the host does to a daemon: sessions, mounts, clocks, descriptors; and the versions on it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from forebay.wire.errors import printable

from ..words import size
from .findings import Jax, Logout, SelfTest, Versions
from .line import Line, fail, ok, warn


def judge_logout(found: Logout) -> Line:
    """Judges whether the pool survives the end of its user's last session."""
    check = "RemoveIPC"
    if not found.has_logind:
        return ok(check, "no systemd is seen from here")
    if not found.removes:
        return ok(check, f"no, by {found.source}: /dev/shm is left alone at a logout")
    by = found.source or "systemd's default"
    if not found.is_concerned:
        return ok(check, f"yes, by {by}, and the pool is not in /dev/shm")
    if found.uid <= found.max_system_uid:
        return ok(check, f"yes, by {by}, but not for uid {found.uid}, a system user")
    if found.lingers:
        return ok(check, f"yes, by {by}, but this user lingers")
    words = f"yes, by {by}: when uid {found.uid} logs out, its files in /dev/shm are removed under the daemon"
    return warn(check, words, "RemoveIPC=no in logind.conf, a system user, or loginctl enable-linger")


def judge_private_tmp(private: Sequence[Path], endpoints: Mapping[str, str]) -> Line:
    """Judges whether others see the sockets.

    Args:
        private: Folders that are this unit's own, by systemd's PrivateTmp=.
        endpoints: Addresses by setting.
    """
    check = "PrivateTmp"
    paths = {name: Path(address.removeprefix("ipc://")) for name, address in endpoints.items()}
    hidden = [
        name
        for name, path in paths.items()
        if endpoints[name].startswith("ipc:") and any(path.is_relative_to(folder) for folder in private)
    ]
    if hidden:
        own = " and ".join(map(str, private))
        words = f"{own} are this unit's own, and {', '.join(hidden)} lie there, unseen by others"
        return warn(check, words, "PrivateTmp=no, or endpoints in a folder of /run (RuntimeDirectory=)")
    if private:
        return ok(check, f"{' and '.join(map(str, private))} are this unit's own; no endpoint lies there")
    return ok(check, "no private /tmp is seen from here")


def judge_clock(offsets: Mapping[str, str]) -> Line:
    """Judges whether daemons share one monotonic clock.

    Args:
        offsets: Seconds and nanoseconds by clock, of this process's time namespace; empty where there are none.
    """
    shift = offsets.get("monotonic", "0 0")
    if all(part == "0" for part in shift.split()):
        return ok("clock", "the host's own monotonic clock")
    words = f"a time namespace whose monotonic clock is {shift.split()[0]} s off the host's"
    remedy = "start every daemon of a pool in the same time namespace"
    return warn("clock", f"{words}: what a daemon in another one left would seem older or younger", remedy)


def judge_descriptors(descriptors: int, fitting: int, wanted: int) -> Line:
    """Judges how many connections the descriptors suffice for.

    Args:
        descriptors: That a process may have.
        fitting: Connections to an endpoint that they suffice for.
        wanted: The setting max_connections.
    """
    words = f"{descriptors} are enough for {fitting} connections to each endpoint"
    if fitting >= wanted:
        return ok("descriptors", words)
    remedy = "raise the limit (LimitNOFILE= of a unit, ulimit -Hn, --ulimit nofile= of a container)"
    return warn("descriptors", f"{words}, and max_connections is {wanted}", f"{remedy}, or lower max_connections")


def judge_versions(found: Versions) -> Line:
    """Judges whether the daemon that runs is the one that is installed."""
    own = f"forebay {found.software}, protocol {found.protocol}, layout {found.layout}, Python {found.python}"
    if found.daemon is None:
        return ok("versions", own)
    if found.daemon != found.software:
        words = f"{own}; the daemon that runs is forebay {printable(found.daemon)}"
        return warn("versions", words, "restart it, to have it run this version")
    return ok("versions", f"{own}; the daemon that runs is the same")


def judge_jax(found: Jax) -> Line:
    """Judges what a trainer would need; daemon and senders need none of it."""
    install = "pip install 'forebay[trainer]'"
    if found.version is None:
        return ok("trainer", f"no jax, which daemon and senders do without; for a trainer: {install}")
    words = f"jax {found.version}, jaxlib {found.jaxlib or 'missing'}"
    if found.jaxlib is None:
        return warn("trainer", f"{words}: no trainer can run", install)
    if found.needed and _numbers(found.version) < _numbers(found.needed):
        return warn("trainer", f"{words}, and a trainer needs jax {found.needed}", install)
    return ok("trainer", words)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def judge_self_test(found: SelfTest) -> Line:
    """Judges a micro-batch's way through a private daemon into a slot's file."""
    check = "self-test"
    if found.trouble:
        return fail(check, found.trouble, "mend what fails above, if anything does, and run it again")
    if not found.payload_bytes:
        words = (
            f"skipped: it needs {size(found.need_bytes)} of shared memory, and {size(found.free_bytes)} are free"
        )
        return warn(check, words, "make room, or leave it out with --no-self-test")
    staged = f"{size(found.payload_bytes)} through a private daemon"
    if found.wrong:
        return fail(
            check, f"{staged}; not what was sent: {', '.join(found.wrong)}", "have the host's memory tested"
        )
    rate = found.payload_bytes / found.seconds / 1e9
    return ok(check, f"{staged} at {rate:.2g} GB/s, bit for bit the same in the slot's file")
