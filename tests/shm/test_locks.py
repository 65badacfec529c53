from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.shm import FileLock, LockNote, free_bytes, is_held, read_note, reserve_pages, wait_until_free
from forebay.wire import HeldError, HostError, Peer

from .processes import PATIENCE_S, Spawn, this_peer, wait_free

HOLD = """
lock = FileLock(Path(sys.argv[1]), PEER)
say("held", os.getpid())
pause()
"""


@pytest.fixture
def path(shm_dir: Path) -> Path:
    return shm_dir / "lock"


# --- holding ---


def test_a_lock_is_held_until_it_is_closed(path: Path) -> None:
    assert not is_held(path)
    assert not path.exists()
    lock = FileLock(path, this_peer())
    assert is_held(path)
    assert lock.is_in_place()
    lock.close()
    assert not is_held(path)
    assert not lock.is_in_place()
    assert path.exists()


def test_a_held_lock_is_refused_by_name_and_stays_with_its_holder(path: Path) -> None:
    lock = FileLock(path, this_peer())
    contents = path.read_bytes()
    with pytest.raises(HeldError) as caught:
        FileLock(path, this_peer())
    assert f"{path} is held by test pid {os.getpid()} on here since 2" in str(caught.value)
    assert "stop it first" in str(caught.value)
    # Nothing has moved.
    assert path.read_bytes() == contents
    assert lock.is_in_place()
    assert is_held(path)
    lock.close()


def test_a_lock_in_another_process_names_that_process(path: Path, spawn: Spawn) -> None:
    child = spawn(HOLD, path)
    assert child.hear() == f"held {child.pid}"
    assert is_held(path)
    with pytest.raises(HeldError, match=f"child pid {child.pid} on elsewhere"):
        FileLock(path, this_peer())
    note = read_note(path)
    assert note is not None
    assert (note.peer.name, note.peer.pid, note.peer.host) == ("child", child.pid, "elsewhere")
    child.go_on()
    assert child.finish() == 0
    assert not is_held(path)


def test_the_kernel_releases_a_lock_on_sigkill_and_a_waiter_hears_of_it(path: Path, spawn: Spawn) -> None:
    child = spawn(HOLD, path)
    child.hear()
    waiter = threading.Thread(target=wait_until_free, args=(path,), daemon=True)
    waiter.start()
    assert waiter.is_alive()
    assert is_held(path)
    child.kill()
    waiter.join(PATIENCE_S)
    assert not waiter.is_alive()
    assert not is_held(path)
    lock = FileLock(path, this_peer())
    assert read_note(path) == LockNote(this_peer(), read_note(path).since)  # type: ignore[union-attr]
    lock.close()


def test_waiting_and_asking_take_no_lock_for_good(path: Path) -> None:
    FileLock(path, this_peer()).close()
    for _ in range(3):
        wait_free(path)
        assert not is_held(path)
    FileLock(path, this_peer()).close()


def test_several_waiters_hear_of_one_release(path: Path) -> None:
    lock = FileLock(path, this_peer())
    waiters = [threading.Thread(target=wait_until_free, args=(path,), daemon=True) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    lock.close()
    for waiter in waiters:
        waiter.join(PATIENCE_S)
        assert not waiter.is_alive()


def test_a_file_that_is_gone_is_free_at_once(path: Path) -> None:
    wait_free(path)
    wait_free(path / "deeper")
    assert not is_held(path / "deeper")


@pytest.mark.parametrize("what", ["folder", "locked folder", "pipe", "socket", "link"])
def test_what_is_no_regular_file_locks_nothing(path: Path, what: str) -> None:
    fds = []
    match what:
        case "folder":
            path.mkdir()
        case "locked folder":
            path.mkdir()
            fds.append(os.open(path, os.O_RDONLY))
            fcntl.flock(fds[0], fcntl.LOCK_EX)
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(path))
        case "link":
            path.symlink_to(path.with_name("target"))
    open_before = os.listdir("/proc/self/fd")
    wait_free(path)
    assert not is_held(path)
    assert read_note(path) is None
    assert os.listdir("/proc/self/fd") == open_before
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("how", ["root", "user"])
def test_a_lock_held_in_another_pid_namespace_is_seen_and_freed_by_sigkill(
    path: Path, spawn: Spawn, how: str
) -> None:
    wrapper = (
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        *(("--user", "--map-root-user") if how == "user" else ()),
    )
    probe = [*wrapper, sys.executable, "-c", ""]
    if not shutil.which("unshare") or subprocess.run(probe, check=False, capture_output=True).returncode:
        pytest.skip(f"{' '.join(wrapper)} is not allowed here")
    child = spawn(HOLD, path, wrapper=wrapper)
    # Pid 1: as a number it would name this machine's init.
    assert child.hear() == "held 1"
    assert is_held(path)
    with pytest.raises(HeldError, match="child pid 1 on elsewhere"):
        FileLock(path, this_peer())
    child.kill()
    wait_free(path)
    assert not is_held(path)


def test_a_program_started_anew_does_not_inherit_the_lock(path: Path, spawn: Spawn) -> None:
    child = spawn(
        """
import subprocess
lock = FileLock(Path(sys.argv[1]), PEER)
grandchild = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
say("held", grandchild.pid)
pause()
""",
        path,
    )
    _, grandchild = child.hear().split()
    child.kill()
    wait_free(path)
    assert not is_held(path)
    assert int(grandchild) > 0  # cat ends by itself: the other end of its input is closed


# --- removing ---


def test_closing_may_remove_the_file_and_a_second_close_does_nothing(path: Path) -> None:
    lock = FileLock(path, this_peer())
    lock.close(remove=True)
    assert not path.exists()
    path.write_text("somebody else's")
    lock.close(remove=True)
    assert path.exists()


def test_a_lock_removes_no_file_that_took_its_place(path: Path) -> None:
    orphan = FileLock(path, this_peer())
    path.unlink()
    assert not orphan.is_in_place()
    lock = FileLock(path, this_peer())
    orphan.close(remove=True)
    assert path.exists()
    assert lock.is_in_place()
    assert is_held(path)
    lock.close()


def interfere(monkeypatch: pytest.MonkeyPatch, deed: Callable[[], object]) -> None:
    """Does `deed` between the opening and the locking of a lock file, once."""
    deeds = [deed]
    flock = fcntl.flock

    def late_flock(fd: int, operation: int) -> None:
        if deeds:
            deeds.pop()()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", late_flock)


def test_a_lock_file_removed_while_it_is_being_locked_is_made_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interfere(monkeypatch, path.unlink)
    lock = FileLock(path, this_peer())
    assert lock.is_in_place()
    with pytest.raises(HeldError):
        FileLock(path, this_peer())
    lock.close()


def test_a_lock_file_replaced_while_it_is_being_locked_is_locked_in_its_new_form(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace() -> None:
        path.unlink()
        path.write_text("")

    interfere(monkeypatch, replace)
    lock = FileLock(path, this_peer())
    assert lock.is_in_place()
    assert is_held(path)
    lock.close()


def test_a_lock_file_replaced_by_a_held_one_while_it_is_being_locked_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[FileLock] = []

    def replace() -> None:
        path.unlink()
        others.append(FileLock(path, this_peer()))

    interfere(monkeypatch, replace)
    with pytest.raises(HeldError):
        FileLock(path, this_peer())
    assert others[0].is_in_place()
    others[0].close()


# --- files that are no lock ---


def test_what_cannot_be_opened_is_refused_by_path(shm_dir: Path) -> None:
    victim = shm_dir / "victim"
    victim.write_bytes(b"precious")
    (shm_dir / "link").symlink_to(victim)
    (shm_dir / "folder").mkdir()
    for name in ("link", "folder", "missing/lock", "victim/lock"):
        with pytest.raises(HostError, match=f"lock file {shm_dir / name} cannot be opened"):
            FileLock(shm_dir / name, this_peer())
    assert victim.read_bytes() == b"precious"


def _note(pid: bytes = b"1", since: bytes = b"") -> bytes:
    return b'{"peer":{"name":"a","pid":%s,"host":"h"},"since":"%s"}' % (pid, since)


NO_NOTES = [
    *(b"", b"{", b"[]", b'{"peer": 1}', b"\xff\xfe", b"null"),
    *(_note(since=b"x" * 5000), _note(pid=b"-1"), _note(pid=b"9" * 40)),
]


@pytest.mark.parametrize("contents", NO_NOTES)
def test_a_note_that_cannot_be_read_is_none_and_the_lock_is_held_all_the_same(path: Path, contents: bytes) -> None:
    assert read_note(path) is None
    lock = FileLock(path, this_peer())
    path.write_bytes(contents)
    assert read_note(path) is None
    with pytest.raises(HeldError, match="held by a process that has not named itself yet"):
        FileLock(path, this_peer())
    lock.close()


def test_what_those_notes_are_made_from_is_one(path: Path) -> None:
    path.write_bytes(_note())
    assert read_note(path) == LockNote(Peer(name="a", pid=1, host="h"), "")


def test_a_short_note_replaces_a_long_one_whole(path: Path) -> None:
    path.write_bytes(b"x" * 5000)
    lock = FileLock(path, this_peer())
    note = read_note(path)
    assert note is not None
    assert note.peer == this_peer()
    lock.close()


def test_a_lock_on_a_full_mount_holds_without_a_note(small_mount: Path) -> None:
    with (small_mount / "filler").open("wb") as filler:
        reserve_pages(filler.fileno(), free_bytes(small_mount), path=small_mount / "filler")
        assert free_bytes(small_mount) == 0
        lock = FileLock(small_mount / "lock", this_peer())
        assert is_held(small_mount / "lock")
        with pytest.raises(HeldError, match="has not named itself yet"):
            FileLock(small_mount / "lock", this_peer())
        lock.close()
