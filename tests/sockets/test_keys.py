"""Key files: who may read them, and what is said about those that others may read."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forebay.cli.app import app
from forebay.sockets import (
    AuthorisedFile,
    load_client_keys,
    load_key_pair,
    load_public_key,
    load_server_keys,
    make_key_files,
)
from forebay.wire import Client, HostError, Right, SettingError, UsageError, read_clients


@pytest.fixture
def open_umask() -> None:
    """Has this process make files that everybody may do everything with, unless it says otherwise."""
    os.umask(0)


@pytest.fixture(autouse=True)
def _umask_as_before() -> object:
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("open_umask")
def test_a_secret_file_is_readable_by_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    public, secret = make_key_files(tmp_path, "alice")
    assert (mode(public), mode(secret)) == (0o644, 0o600)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alice.key", "alice.key_secret"]
    pair = load_key_pair(str(secret), "key_file")
    assert load_public_key(str(public), "key_file") == pair.public
    assert pair.secret.decode() not in public.read_text()
    assert pair.secret.decode() not in repr(pair)


@pytest.mark.usefixtures("open_umask")
def test_a_secret_is_never_in_a_file_that_others_may_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    link = os.link

    def look(source: Path, target: Path) -> None:
        folder = Path(source).parent
        seen.append(mode(folder))
        if Path(source).suffix == ".key_secret":
            seen.append(mode(Path(source)))
        link(source, target)

    monkeypatch.setattr(os, "link", look)
    make_key_files(tmp_path, "alice")
    assert set(seen) == {0o700, 0o600}, "its folder is private before it is, and it is before it gets its name"


@pytest.mark.parametrize("present", ["alice.key", "alice.key_secret"])
def test_a_file_that_is_there_is_never_replaced(tmp_path: Path, present: str) -> None:
    (tmp_path / present).write_text("mine")
    with pytest.raises(UsageError, match=f"{present} exists already"):
        make_key_files(tmp_path, "alice")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(present, "mine")]


@pytest.mark.parametrize("name", ["", ".", "..", "../alice", "a/b", ".hidden", "red\x1b[31m", "\u202egpj"])
def test_a_name_that_leads_elsewhere_or_drives_a_terminal_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="name of the key files"):
        make_key_files(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=f"{tmp_path}/missing"):
        make_key_files(tmp_path / "missing", "alice")


def test_the_command_prints_what_goes_into_the_file_of_authorised_clients(tmp_path: Path) -> None:
    entries = ""
    second, queue = 'bob 2 "é\U0001f600', 'a "b" é\x7f\n'
    flags_of = {
        "alice": ("stage", "--queue", queue, "--queue", "c"),
        second: ("train", "--right", "inspect"),
    }
    for name, flags in flags_of.items():
        done = CliRunner().invoke(app, ["keygen", name, "--folder", str(tmp_path), "--right", *flags])
        assert done.exit_code == 0
        assert str(tmp_path / f"{name}.key_secret") in done.stderr
        entries += done.stdout
    alice, bob = (load_public_key(str(tmp_path / f"{name}.key"), "").decode() for name in ("alice", second))
    assert read_clients(entries, "output") == {
        alice: Client("alice", frozenset({Right.STAGE}), frozenset({queue, "c"})),
        bob: Client(second, frozenset({Right.TRAIN, Right.INSPECT})),
    }


def test_the_command_prints_no_entry_for_a_server_and_refuses_a_queue_without_a_right(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["keygen", "server", "--folder", str(tmp_path)])
    assert (done.exit_code, done.stdout) == (0, "")
    assert "a server needs none" in done.stderr
    assert "--right" in done.stderr
    done = CliRunner().invoke(app, ["keygen", "bob", "--folder", str(tmp_path), "--queue", "a"])
    assert isinstance(done.exception, UsageError)
    assert "--right stage" in str(done.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["server.key", "server.key_secret"]


# --- files of others ---


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o660, 0o601])
def test_a_secret_that_others_may_read_is_refused_with_its_mode_and_the_remedy(tmp_path: Path, bits: int) -> None:
    _, secret = make_key_files(tmp_path, "alice")
    secret.chmod(bits)
    with pytest.raises(SettingError) as caught:
        load_key_pair(str(secret), "key_file")
    for word in ("setting key_file", f"mode {bits:04o}", f"chmod 600 {secret}"):
        assert word in str(caught.value)


@pytest.mark.parametrize("bits", [0o620, 0o602])
def test_a_file_of_clients_that_others_may_write_is_refused_with_its_mode_and_the_remedy(
    tmp_path: Path, bits: int
) -> None:
    file = tmp_path / "authorised.toml"
    file.touch()
    file.chmod(bits)
    with pytest.raises(SettingError) as caught:
        AuthorisedFile(str(file))
    for word in ("authorised_file", f"mode {bits:04o}", f"chmod 644 {file}"):
        assert word in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_secret_of_somebody_else_is_refused_with_the_remedy(
    tmp_path: Path,
) -> None:
    _, secret = make_key_files(tmp_path, "alice")
    os.chown(secret, 4711, -1)
    with pytest.raises(SettingError) as caught:
        load_key_pair(str(secret), "key_file")
    assert "got uid 4711" in str(caught.value)
    assert "limit uid 0;" in str(caught.value)
    assert f"chown 0 {secret}" in str(caught.value)


@pytest.mark.parametrize("bits", [0o600, 0o644], ids=oct)
def test_a_public_file_in_place_of_a_secret_one_is_told_whatever_its_mode(tmp_path: Path, bits: int) -> None:
    public, _ = make_key_files(tmp_path, "alice")
    public.chmod(bits)
    with pytest.raises(SettingError, match="holds no secret key"):
        load_key_pair(str(public), "key_file")


@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_a_secret_file_in_place_of_a_public_one_is_refused_and_its_key_is_not_told(
    tmp_path: Path, mode: int
) -> None:
    _, secret = make_key_files(tmp_path, "server")
    key = load_key_pair(str(secret), "key_file").secret.decode()
    secret.chmod(mode)  # which is not what is wrong: who is told to change it may open it to all
    with pytest.raises(SettingError, match=r"server_key_file: .*server.key_secret holds the secret key") as caught:
        load_public_key(str(secret), "server_key_file")
    assert key not in str(caught.value)
    assert "name the .key file" in str(caught.value)
    assert "chmod" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "nothing", 'public-key = "short"', "public-key ="])
def test_what_is_no_key_file_is_told(tmp_path: Path, text: str) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(SettingError, match=r"setting server_key_file: .* is no key file"):
        load_public_key(str(file), "server_key_file")


@pytest.mark.parametrize("what", ["pipe", "folder"])
@pytest.mark.parametrize("name", ["key_file", "authorised_file", "client_key_file", "server_key_file"])
def test_what_is_no_file_is_told_at_once_and_not_waited_for(tmp_path: Path, name: str, what: str) -> None:
    _, secret = make_key_files(tmp_path, "alice")
    wrong = tmp_path / "wrong"
    if what == "pipe":
        os.mkfifo(wrong, 0o600)
    else:
        wrong.mkdir(0o700)
    good, bad = str(secret), str(wrong)
    load: Callable[[], object] = {
        "key_file": lambda: load_server_keys(bad, good),
        "authorised_file": lambda: load_server_keys(good, bad),
        "client_key_file": lambda: load_client_keys(bad, good, server_setting="server_key_file"),
        "server_key_file": lambda: load_client_keys(good, bad, server_setting="server_key_file"),
    }[name]
    with pytest.raises(SettingError, match=f"setting {name}: {bad} is no file; limit a regular file"):
        load()


def test_one_file_of_two_is_a_wrong_setting_and_none_of_two_is_no_keys(tmp_path: Path) -> None:
    _, secret = make_key_files(tmp_path, "alice")
    with pytest.raises(SettingError, match="setting authorised_file"):
        load_server_keys(str(secret), "")
    with pytest.raises(SettingError, match="setting key_file"):
        load_server_keys("", "some")
    with pytest.raises(SettingError, match="setting server_key_file"):
        load_client_keys(str(secret), "", server_setting="server_key_file")
    with pytest.raises(SettingError, match="setting client_key_file"):
        load_client_keys("", "some", server_setting="server_key_file")
    assert load_server_keys("", "") is None
    assert load_client_keys("", "", server_setting="server_key_file") is None
