"""Judges who may use what: user, folders, keys."""

from __future__ import annotations

import stat
from collections.abc import Sequence

from forebay.shm.layout import LAYOUT_VERSION

from .findings import Folder, Keys, User
from .line import Line, Verdict, fail, ok, warn


def judge_user(found: User) -> Line:
    """Judges who runs the daemon, and the group that may use it too."""
    name = f" ({found.name})" if found.name else ""
    words = f"uid {found.uid}{name}"
    if found.gid is None:
        return ok("user", f"{words}; sockets and pool are for it alone")
    words = f"{words}; sockets and pool are for group {found.group} too"
    if found.uid != 0 and found.gid not in found.groups:
        return fail("user", f"{words}, which this user is not in", "make it a member, or set another group")
    return ok("user", words)


def judge_pool_folder(found: Folder) -> Line:
    """Judges the pool's folder, and what an earlier daemon left there."""
    layout = found.layout_version
    if not found.fault and layout is not None and layout != LAYOUT_VERSION:
        words = f"{found.path} holds slots of layout {layout}, and this version has layout {LAYOUT_VERSION}"
        return fail("pool folder", words, f"end its daemon and trainers, then rm -r {found.path}")
    return _judge_folder("pool folder", found)


def judge_socket_folders(found: Sequence[Folder]) -> Line:
    """Judges the folders of ipc endpoints; of several it tells the worst."""
    lines = [_judge_socket_folder(folder) for folder in found]
    return max(lines, key=_badness, default=ok("socket folder", "no ipc endpoint needs one"))


def _badness(line: Line) -> int:
    return list(Verdict).index(line.verdict)


def _judge_socket_folder(found: Folder) -> Line:
    line = _judge_folder("socket folder", found)
    others = found.mode is not None and found.mode & stat.S_IWOTH and not found.mode & stat.S_ISVTX
    if line.remedy or not others:
        return line
    words = f"everybody may remove what lies in {found.path}, mode {found.mode:04o}"
    return warn("socket folder", words, f"chmod o-w {found.path}, or choose a folder of this user's")


def _judge_folder(check: str, found: Folder) -> Line:
    if found.fault:
        return fail(check, found.fault, found.remedy)
    if not found.is_there and not (found.is_made and found.parent_is_there):
        missing = found.path.parent if found.is_made else found.path
        return fail(check, f"there is no folder {missing}", "make it first, or choose another")
    if not found.is_writable:
        place = found.path if found.is_there else found.path.parent
        return fail(check, f"this user may not write in {place}", "run as its owner, or choose another")
    if not found.is_there:
        return ok(check, f"{found.path} is yet to be made")
    return ok(check, f"{found.path}, mode {found.mode or 0:04o}")


def judge_keys(found: Keys) -> Line:
    """Judges what guards the tcp endpoints."""
    at = [address for address in found.endpoints if address.startswith("tcp:")]
    if found.key_file:
        words = f"{found.key_file}, and {found.clients} authorised clients"
        return ok("keys", words if at else f"{words}; no tcp endpoint uses them")
    if not at:
        return ok("keys", "none: ipc endpoints are guarded by the file system")
    remedy = "make keys (forebay keygen), and set key_file and authorised_file"
    if found.open_to_all:
        words = f"none: everybody who reaches {' or '.join(found.open_to_all)} may enter"
        return warn("keys", words, remedy)
    return warn("keys", f"none: every user of this host may enter at {' and '.join(at)}", f"use ipc, or {remedy}")
