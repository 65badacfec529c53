from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from forebay.shm import default_endpoint, default_pool, make_private_folder, runtime_folder
from forebay.wire import HostError


def test_a_private_folder_is_made_or_taken_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    make_private_folder(folder, "socket")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "file").touch()
    make_private_folder(folder, "socket")
    assert [file.name for file in folder.iterdir()] == ["file"]


def test_a_link_a_file_and_a_missing_parent_are_refused_by_purpose_and_path(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    for name in ("link", "file", "missing/folder"):
        with pytest.raises(HostError, match=f"the socket folder {tmp_path / name} "):
            make_private_folder(tmp_path / name, "socket")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "link"]


def test_sockets_lie_where_this_user_alone_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOREBAY_CONTROL_ENDPOINT", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert runtime_folder() == Path("/run/user/7/forebay")
    assert default_endpoint("control") == "ipc:///run/user/7/forebay/control.sock"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_endpoint("control") == f"ipc:///tmp/forebay-{os.geteuid()}/control.sock"
    monkeypatch.setenv("FOREBAY_CONTROL_ENDPOINT", "tcp://host:1")
    assert default_endpoint("control") == "tcp://host:1"


def test_the_default_pool_is_this_users_own() -> None:
    assert default_pool() == Path(f"/dev/shm/forebay-{os.geteuid()}-default")
