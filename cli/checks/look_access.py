"""Looks at who may use what: user, folders, keys."""

from __future__ import annotations

import dataclasses
import grp
import os
import pwd
import stat
from pathlib import Path

from forebay.shm.locations import check_own_folder, group_id, runtime_folder
from forebay.shm.pool import HEADER_NAME, read_pool_header
from forebay.wire.errors import HostError

from .case import Case, may_write
from .findings import Folder, Keys, User
from .line import without_remedy


def look_at_user(case: Case) -> User:
    """Looks at this process's user, and at the setting `group`.

    Raises:
        SettingError: There is no such group.
    """
    group = case.settings.group
    uid = os.geteuid()
    groups = frozenset((os.getegid(), *os.getgroups()))
    return User(uid, user_name(uid), groups, _group_name(group), group_id(group))


def user_name(uid: int) -> str:
    """Returns a user's name; empty if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def _group_name(group: str) -> str:
    try:
        return grp.getgrgid(int(group)).gr_name
    except (KeyError, ValueError, OverflowError):
        return group


def look_at_pool_folder(case: Case) -> Folder:
    """Looks at the pool's folder, which the daemon makes if it is not there."""
    found = look_at_folder(case.pool, what="pool", is_own=True)
    if found.fault or not (case.pool / HEADER_NAME).exists():
        return found
    try:
        layout = read_pool_header(case.pool).layout_version
    except HostError:  # half of it was written; a daemon writes it anew
        return found
    return dataclasses.replace(found, layout_version=layout)


def look_at_socket_folders(case: Case) -> list[Folder]:
    """Looks at the folders of ipc endpoints."""
    # One in the pool's own folder is made with it.
    folders = {path.parent for path in case.ipc_paths} - {case.pool}
    return [look_at_folder(path, what="socket", is_own=path == runtime_folder()) for path in sorted(folders)]


def look_at_folder(path: Path, *, what: str, is_own: bool) -> Folder:
    """Looks at one folder.

    Args:
        path: It.
        what: What it is for.
        is_own: Whether the daemon makes it if it is not there, and has it for itself; else it must be there.
    """
    parent = path.parent
    if not os.path.lexists(path):
        return Folder(path, False, parent_is_there=parent.is_dir(), is_writable=may_write(parent), is_made=is_own)
    fault, remedy = "", ""
    if is_own:
        try:
            check_own_folder(path, what)
        except HostError as error:
            fault, remedy = without_remedy(error), error.remedy or ""
    elif not path.is_dir():
        fault, remedy = f"{path} is no folder", "choose another"
    mode = stat.S_IMODE(path.stat().st_mode)
    # A folder of its own is given the mode that it needs.
    return Folder(path, True, fault, remedy, is_writable=is_own or may_write(path), is_made=is_own, mode=mode)


def look_at_keys(case: Case) -> Keys:
    """Reads the key files.

    Raises:
        SettingError: One of them cannot be used.
    """
    settings = case.settings
    clients = 0
    if settings.key_file or settings.authorised_file:
        from forebay.sockets.gate import load_server_keys

        keys = load_server_keys(settings.key_file, settings.authorised_file)
        clients = 0 if keys is None else keys.authorised.count
    endpoints = (settings.control_endpoint, settings.data_endpoint)
    return Keys(settings.key_file, clients, endpoints, tuple(settings.open_to_all))
