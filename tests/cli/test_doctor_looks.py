"""What `forebay doctor` reads of a host: here one that is made of files."""

from __future__ import annotations

import dataclasses
import mmap
import os
import socket
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from forebay.cli.checks import look_access, look_host, look_http, look_memory, look_presence
from forebay.cli.checks.case import Case
from forebay.cli.checks.findings import Address, At
from forebay.cli.checks.judge_memory import judge_group
from forebay.cli.checks.line import Verdict
from forebay.daemon import Settings
from forebay.shm import FileLock, Pool, free_bytes, this_peer
from forebay.shm.pool import HEADER_NAME, LOCK_NAME
from forebay.wire import MIB, SettingError

ME = this_peer("forebay test")


def case_of(root: Path, **settings: Any) -> Case:
    return Case(Settings(slots=2, slot_initial_bytes=MIB, slot_max_bytes=4 * MIB, **settings), root=root)


def put(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_needs_are_what_the_pool_then_takes(shm_dir: Path) -> None:
    settings = Settings(pool=str(shm_dir / "pool"), slots=2, slot_initial_bytes=MIB, slot_max_bytes=4 * MIB)
    start, grown = look_memory.needs(Case(settings))
    assert grown == start + 2 * 3 * MIB
    pool = Pool(
        shm_dir / "pool",
        slot_count=2,
        slot_bytes=MIB,
        remembered_keys=settings.remembered_keys,
        peer=ME,
        epoch="e",
    )
    try:
        taken = sum(file.lstat().st_blocks * 512 for file in (shm_dir / "pool").iterdir() if file.is_file())
        assert start == taken
        assert look_memory.needs(Case(settings)) == (0, 2 * 3 * MIB), "what the pool has is needed no more"
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("limit", "verdict"), [("max", Verdict.OK), (2 * MIB, Verdict.FAIL), (130 * MIB, Verdict.WARN)]
)
@pytest.mark.parametrize("version", [1, 2])
def test_the_tightest_control_group_around_is_held_against_the_pool(
    tmp_path: Path, version: int, limit: str | int, verdict: Verdict
) -> None:
    names = (
        ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    mount = "sys/fs/cgroup" if version == 2 else "sys/fs/cgroup/memory"
    put(tmp_path, "proc/self/cgroup", "0::/unit/inner\n" if version == 2 else "4:memory:/unit/inner\n")
    for group, bound in (("unit", limit), ("unit/inner", 1 << 40)):
        put(tmp_path, f"{mount}/{group}/{names[0]}", f"{bound}\n")
        put(tmp_path, f"{mount}/{group}/{names[1]}", "4096\n")
        put(tmp_path, f"{mount}/{group}/memory.stat", "anon 1\n")
    # Not this user's own: a daemon may have that.
    found = look_memory.look_at_group(case_of(tmp_path, pool=str(tmp_path / "pool")))
    assert judge_group(found).verdict is verdict
    if verdict is not Verdict.OK:
        assert found is not None
        assert found.place == tmp_path / mount / "unit"


MOUNT = "30 1 0:26 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=1024k"


@pytest.mark.parametrize(
    ("options", "kernel", "option", "chosen"),
    [
        ("", "always within_size advise [never] deny force\n", "never", "never"),
        (",huge=advise", "always [advise] never\n", "advise", "advise"),
        (",huge=always", "", "always", ""),
    ],
)
def test_huge_pages_are_read_of_mount_and_kernel(
    tmp_path: Path, options: str, kernel: str, option: str, chosen: str
) -> None:
    put(tmp_path, "proc/self/mountinfo", f"{MOUNT}{options}\n")
    put(tmp_path, "sys/kernel/mm/transparent_hugepage/shmem_enabled", kernel)
    found = look_memory.look_at_huge_pages(case_of(tmp_path))
    assert (found.option, found.kernel) == (option, chosen)


SWAPS = "Filename Type Size Used Priority\n/dev/sdb partition 1024 0 -2\n/swap file 2048 0 -3\n"


@pytest.mark.parametrize(
    ("mount", "group", "is_kept_out"), [("", "max", False), ("", "0", True), (",noswap", "max", True)]
)
def test_swap_is_added_up_and_what_keeps_the_pool_out_is_seen(
    tmp_path: Path, mount: str, group: str, is_kept_out: bool
) -> None:
    put(tmp_path, "proc/swaps", SWAPS)
    put(tmp_path, "proc/self/mountinfo", f"{MOUNT}{mount}\n")
    put(tmp_path, "proc/self/cgroup", "0::/unit/inner\n")
    put(tmp_path, "sys/fs/cgroup/unit/inner/memory.swap.max", "max\n")
    put(tmp_path, "sys/fs/cgroup/unit/memory.swap.max", f"{group}\n")
    found = look_memory.look_at_swap(case_of(tmp_path))
    assert (found.swap_bytes, found.is_kept_out) == (3072 << 10, is_kept_out)


def test_nodes_are_read_of_the_lines_of_one_file() -> None:
    text = (
        "7f00 default file=/dev/shm/p/slot-0000 dirty=9 active=0 N0=6 N1=3 kernelpagesize_kB=4\n"
        "7f10 default file=/dev/shm/p/slot-00001 N1=5\n"
        "7f20 default file=/dev/shm/p/slot-0000 N1=2\n"
    )
    assert look_memory.nodes_in(text, Path("/dev/shm/p/slot-0000")) == {0: 6, 1: 5}


def test_a_host_with_two_nodes_has_the_pages_of_a_slot_looked_at(tmp_path: Path, shm_dir: Path) -> None:
    if not Path("/proc/self/numa_maps").exists():
        pytest.skip("this kernel knows no memory nodes")
    for node in ("node0", "node1"):
        (tmp_path / "sys/devices/system/node" / node).mkdir(parents=True)
    (shm_dir / "slot-0000").write_bytes(bytes(100 * mmap.PAGESIZE))
    found = look_memory.look_at_nodes(case_of(tmp_path, pool=str(shm_dir)))
    assert found.count == 2
    assert sum(found.pages.values()) >= 64


def test_no_file_at_all_is_a_host_of_which_nothing_is_known(tmp_path: Path) -> None:
    case = case_of(tmp_path)
    assert look_memory.look_at_group(case) is None
    assert look_memory.look_at_swap(case).swap_bytes == 0
    assert look_memory.look_at_nodes(case).count == 1
    assert look_host.clock_offsets(case) == {}
    assert look_host.private_folders(case) == []
    assert not look_host.look_at_logout(case).has_logind


@pytest.mark.parametrize(
    ("files", "removes", "source"),
    [
        ({}, True, ""),
        ({"etc/systemd/logind.conf": "[Login]\n#RemoveIPC=no\n"}, True, ""),
        ({"etc/systemd/logind.conf": "[Login]\nRemoveIPC=no\n"}, False, "etc/systemd/logind.conf"),
        (
            {"etc/systemd/logind.conf": "RemoveIPC = off\n", "usr/lib/systemd/logind.conf": "RemoveIPC=yes\n"},
            False,
            "etc/systemd/logind.conf",
        ),
        (
            {"etc/systemd/logind.conf": "RemoveIPC=no\n", "run/systemd/logind.conf.d/50.conf": "RemoveIPC=yes\n"},
            True,
            "run/systemd/logind.conf.d/50.conf",
        ),
        (
            {
                "usr/lib/systemd/logind.conf.d/50.conf": "RemoveIPC=yes\n",
                "etc/systemd/logind.conf.d/50.conf": "RemoveIPC=no\n",
                "etc/systemd/logind.conf.d/10.conf": "RemoveIPC=yes\n",
            },
            False,
            "etc/systemd/logind.conf.d/50.conf",
        ),
    ],
)
def test_the_last_of_systemds_files_has_the_word_on_removing_what_a_user_left(
    tmp_path: Path, files: dict[str, str], removes: bool, source: str
) -> None:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    for path, text in files.items():
        put(tmp_path, path, text)
    found = look_host.look_at_logout(case_of(tmp_path))
    assert found.has_logind
    assert (found.removes, found.source) == (removes, str(tmp_path / source) if source else "")


def test_the_hosts_last_system_user_and_a_lingering_one_are_seen(tmp_path: Path) -> None:
    assert look_host.look_at_logout(case_of(tmp_path)).max_system_uid == 999
    put(tmp_path, "etc/login.defs", "#SYS_UID_MAX 5\nSYS_UID_MAX\t499\n")
    name = look_access.user_name(os.geteuid()) or str(os.geteuid())
    put(tmp_path, f"var/lib/systemd/linger/{name}", "")
    found = look_host.look_at_logout(case_of(tmp_path))
    assert (found.max_system_uid, found.lingers) == (499, True)


def test_a_private_tmp_is_told_from_the_hosts_own(tmp_path: Path) -> None:
    put(
        tmp_path,
        "proc/self/mountinfo",
        "31 1 0:27 /systemd-private-0a-forebay.service-x/tmp /tmp rw - tmpfs tmpfs rw\n"
        "32 1 0:28 / /var/tmp rw - tmpfs tmpfs rw\n",
    )
    assert look_host.private_folders(case_of(tmp_path)) == [Path("/tmp")]


def test_a_time_namespace_is_read(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/timens_offsets", "monotonic   -86400         5\nboottime  0  0\n")
    assert look_host.clock_offsets(case_of(tmp_path)) == {"monotonic": "-86400 5", "boottime": "0 0"}


def test_jax_is_found_without_its_import() -> None:
    found = look_host.look_at_jax()
    assert found.version is not None
    assert found.jaxlib is not None


@pytest.mark.parametrize(
    ("requirements", "least"),
    [
        (["numpy>=2.0", 'jax>=0.7; extra == "trainer"'], "0.7"),
        (['jax (>=0.7.1) ; extra == "trainer"'], "0.7.1"),
        (["jaxtyping>=0.3", "jax"], ""),
    ],
)
def test_the_least_jax_is_what_the_package_requires(requirements: list[str], least: str) -> None:
    assert look_host.least_version(requirements, "jax") == least


# --- folders and addresses ---


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runtime folder's parent, of a short name: sockets lie in it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_a_pool_folder_that_a_daemon_would_refuse_is_found_in_its_words(shm_dir: Path) -> None:
    case = case_of(Path("/"), pool=str(shm_dir / "pool"))
    assert not look_access.look_at_pool_folder(case).is_there
    case.pool.mkdir(mode=0o1777)
    case.pool.chmod(0o1777)
    found = look_access.look_at_pool_folder(case)
    assert found.fault.startswith(f"the pool folder {case.pool} is shared by many users")
    assert found.remedy == "choose a folder in it"


def test_slots_of_another_layout_are_found(shm_dir: Path) -> None:
    (shm_dir / HEADER_NAME).write_bytes(msgspec.json.encode({"layout_version": 77, "epoch": "e"}))
    assert look_access.look_at_pool_folder(case_of(Path("/"), pool=str(shm_dir))).layout_version == 77


def test_socket_folders_are_the_one_that_the_daemon_makes_and_those_that_must_be_there(
    folder: Path, shm_dir: Path
) -> None:
    endpoints = {"control_endpoint": f"ipc://{shm_dir}/c.sock", "data_endpoint": f"ipc://{folder}/gone/d.sock"}
    own, gone = look_access.look_at_socket_folders(case_of(Path("/"), pool=str(shm_dir), **endpoints))
    assert (own.path, own.is_there, own.is_made, own.is_writable) == (folder / "forebay", False, True, True)
    assert (gone.path, gone.is_there, gone.is_made) == (folder / "gone", False, False)


def test_a_locked_path_is_the_daemons_only_if_the_pools_holder_has_it(folder: Path, shm_dir: Path) -> None:
    case = case_of(Path("/"), pool=str(shm_dir), trainer_endpoint=f"ipc://{folder}/t.sock")
    path_lock = FileLock(folder / "t.sock.lock", ME)
    try:
        found = look_presence.look_at_address(case, "trainer_endpoint")
        assert found.at is At.OTHER
        assert found.words.startswith(f"forebay test pid {os.getpid()} on ")
        for peer, at in ((this_peer("forebay daemon"), At.OTHER), (ME, At.DAEMON)):
            pool_lock = FileLock(shm_dir / LOCK_NAME, peer)
            try:
                anew = dataclasses.replace(case)
                assert look_presence.look_at_address(anew, "trainer_endpoint").at is at
            finally:
                pool_lock.close(remove=True)
    finally:
        path_lock.close(remove=True)


def test_paths_that_are_free_taken_and_no_sockets_are_told_apart(folder: Path) -> None:
    case = case_of(Path("/"), trainer_endpoint=f"ipc://{folder}/t.sock")
    assert look_presence.look_at_address(case, "trainer_endpoint").at is At.NOBODY
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(folder / "t.sock"))
        assert look_presence.look_at_address(case, "trainer_endpoint").at is At.NOBODY, "nobody listens"
        other.listen()
        assert look_presence.look_at_address(case, "trainer_endpoint").at is At.FOREIGN
    assert look_presence.look_at_address(case, "trainer_endpoint").at is At.NOBODY, "whoever listened is gone"
    (folder / "t.sock").unlink()
    (folder / "t.sock").write_text("a file")
    assert look_presence.look_at_address(case, "trainer_endpoint").at is At.NOWHERE


def test_a_path_over_107_bytes_is_told_in_the_settings_words() -> None:
    case = case_of(Path("/"), trainer_endpoint=f"ipc:///{'x' * 107}")
    with pytest.raises(SettingError, match=r"a path of 108 bytes.*limit 107 bytes for a Unix socket"):
        look_presence.look_at_address(case, "trainer_endpoint")


def tcp(port: int | str) -> dict[str, str]:
    return {"control_endpoint": f"tcp://127.0.0.1:{port}", "data_endpoint": "tcp://127.0.0.1:*"}


def test_ports_that_are_free_taken_and_unknown_are_told_apart(shm_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(10)
        port = other.getsockname()[1]
        case = case_of(Path("/"), pool=str(shm_dir), **tcp(port))
        found = look_presence.look_at_address(case, "control_endpoint")
        assert (found.at, "does not say who it is" in found.words) == (At.OTHER, True)
    assert look_presence.look_at_address(case, "control_endpoint").at is At.NOBODY
    assert not look_presence.look_at_address(case, "data_endpoint").is_certain


def test_the_http_address_is_looked_at_where_one_is_set(shm_dir: Path) -> None:
    def found(http_endpoint: str) -> Address | None:
        return look_http.look_at_http(case_of(Path("/"), pool=str(shm_dir), http_endpoint=http_endpoint))

    assert found("") is None
    assert found("192.0.2.1:9470") == Address("http_endpoint", "192.0.2.1:9470", At.NOWHERE, mock.ANY)
    assert found("127.0.0.1:0") == Address("http_endpoint", "127.0.0.1:0", At.NOBODY, is_certain=False)
    with socket.create_server(("127.0.0.1", 0)) as other:
        free = f"127.0.0.1:{other.getsockname()[1]}"
    assert found(free) == Address("http_endpoint", free, At.NOBODY)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-x\r\n\r\n{}", "a process that does not say that it is a Forebay daemon"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"peer": 3}', "a process that does not say that it is a Forebay daemon"),
        (b"HTTP/1.1 200 OK\r\n\r\n\xff{", "a process that does not say that it is a Forebay daemon"),
        (b"", "a process that does not say that it is a Forebay daemon"),
        (
            b'HTTP/1.1 200 OK\r\n\r\n{"peer": {"name": "d", "pid": 7, "host": "h"}, "pool": "/p", "more": 1}',
            "d pid 7 on h, which has the pool /p",
        ),
    ],
    ids=["no http", "other json", "no json", "silence", "a daemon"],
)
def test_who_has_the_http_address_is_told_as_far_as_it_says(shm_dir: Path, answer: bytes, words: str) -> None:
    def serve(listener: socket.socket) -> None:
        with listener.accept()[0] as asked:
            asked.recv(1 << 16)
            asked.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(10)
        server = threading.Thread(target=serve, args=(other,))
        server.start()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        found = look_http.look_at_http(case_of(Path("/"), pool=str(shm_dir), http_endpoint=address))
        server.join(10)
    assert found is not None
    assert (found.at, found.words.startswith(words)) == (At.OTHER, True), found


def test_an_address_of_another_host_cannot_be_bound(shm_dir: Path) -> None:
    settings = {"control_endpoint": "tcp://192.0.2.1:5555", "data_endpoint": "tcp://192.0.2.1:5556"}
    case = case_of(Path("/"), pool=str(shm_dir), insecure=True, **settings)
    assert look_presence.look_at_address(case, "control_endpoint").at is At.NOWHERE


def test_room_is_that_of_the_pools_mount(shm_dir: Path) -> None:
    found = look_memory.look_at_room(case_of(Path("/"), pool=str(shm_dir / "pool")))
    assert found.place == Path("/dev/shm")
    assert found.limit_bytes >= found.free_bytes > 0
    assert found.limit_bytes >= free_bytes(shm_dir)
