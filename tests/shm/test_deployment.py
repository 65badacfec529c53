"""Whose a path is that a process may not use."""

from __future__ import annotations

import grp
import os
import socket
from pathlib import Path

import pytest

from forebay.shm import private_words

ELSEWHERE = 64_011
"""A group that no file here has."""


@pytest.fixture
def not_in_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getegid", lambda: ELSEWHERE)
    monkeypatch.setattr(os, "getgroups", lambda: [ELSEWHERE])


def lay(path: Path, kind: str, mode: int) -> None:
    """Makes a file, a folder or a socket."""
    if kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.fspath(path))
    else:
        path.touch()
    path.chmod(mode)


@pytest.mark.usefixtures("not_in_its_group")
@pytest.mark.parametrize(("kind", "mode"), [("socket", 0o660), ("folder", 0o710), ("file", 0o640)])
def test_what_a_group_may_use_names_the_group_that_this_process_is_not_in(
    tmp_path: Path, kind: str, mode: int
) -> None:
    path = tmp_path / "it"
    lay(path, kind, mode)
    group = grp.getgrgid(path.stat().st_gid).gr_name
    owners = f"uid {path.stat().st_uid} and group {group}"
    assert private_words(path) == f"{path} is for {owners}, and this process, uid {os.geteuid()}, is in neither"


@pytest.mark.usefixtures("not_in_its_group")
@pytest.mark.parametrize(("kind", "mode"), [("socket", 0o600), ("folder", 0o700), ("socket", 0o640)])
def test_what_its_owner_alone_may_use_names_no_group(tmp_path: Path, kind: str, mode: int) -> None:
    path = tmp_path / "it"
    lay(path, kind, mode)
    uid = path.stat().st_uid
    assert private_words(path) == f"{path} is private to uid {uid}, and this process runs as uid {os.geteuid()}"


@pytest.mark.usefixtures("not_in_its_group")
def test_a_group_without_a_name_is_told_by_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grp, "getgrgid", {}.__getitem__)
    lay(tmp_path / "it", "file", 0o640)
    assert f"group {(tmp_path / 'it').stat().st_gid}, " in private_words(tmp_path / "it")


def test_who_is_in_the_group_is_not_told_otherwise(tmp_path: Path) -> None:
    lay(tmp_path / "it", "file", 0o640)
    os.chown(tmp_path / "it", -1, os.getegid())
    assert "is private to uid" in private_words(tmp_path / "it")
