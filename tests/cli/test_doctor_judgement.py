"""What `forebay doctor` makes of what it finds: each check's verdicts, without a host."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from forebay.cli.checks import judge_access, judge_host, judge_memory, judge_presence
from forebay.cli.checks.findings import (
    Address,
    Answer,
    At,
    Folder,
    HugePages,
    Jax,
    Keys,
    Logout,
    Nodes,
    Room,
    Running,
    SelfTest,
    Swap,
    User,
    Versions,
)
from forebay.cli.checks.line import Line, Verdict, failed_by, is_bad
from forebay.shm import LAYOUT_VERSION
from forebay.wire import GIB, MIB, SettingError

OK, WARN, FAIL = Verdict.OK, Verdict.WARN, Verdict.FAIL
SHM = Path("/dev/shm")
POOL = "/dev/shm/pool"


def verdict_of(line: Line, *words: str) -> Verdict:
    """Returns the verdict, having looked at what every line must have."""
    assert bool(line.remedy) is (line.verdict is not OK), line
    for word in words:
        assert word in f"{line.found}; {line.remedy}", line
    return line.verdict


def room(free: int, start: int, grown: int) -> Room:
    return Room(SHM, 64 * GIB, free, start, grown)


@pytest.mark.parametrize(
    ("found", "verdict", "word"),
    [
        (room(GIB, GIB, GIB), OK, "1 GiB of 64 GiB are free on /dev/shm"),
        (room(GIB, GIB, GIB + 1), WARN, "lower slots or slot_max_bytes"),
        (room(GIB, GIB + 1, 2 * GIB), FAIL, "mount -o remount,size=... /dev/shm"),
    ],
)
def test_room_fails_without_that_for_the_start_and_warns_without_that_for_growth(
    found: Room, verdict: Verdict, word: str
) -> None:
    assert verdict_of(judge_memory.judge_room(found), word) is verdict


DAEMON = judge_memory.DAEMON_BYTES


@pytest.mark.parametrize(
    ("found", "verdict", "word"),
    [
        (None, OK, "no limit"),
        (room(2 * GIB + DAEMON, GIB, 2 * GIB), OK, "control group /dev/shm"),
        (room(2 * GIB, GIB, 2 * GIB), WARN, "no room to grow"),
        (room(GIB, GIB, GIB), WARN, "the kernel may kill the daemon"),
        (room(GIB - 1, GIB, GIB), FAIL, "raise the memory limit of the daemon's container or unit"),
    ],
)
def test_a_control_group_has_to_have_room_for_the_daemon_as_well(
    found: Room | None, verdict: Verdict, word: str
) -> None:
    assert verdict_of(judge_memory.judge_group(found), word) is verdict


@pytest.mark.parametrize(("limit", "word"), [(None, "no limit"), (8 * MIB, "8 MiB")])
def test_memlock_is_told_and_never_held_against_a_host(limit: int | None, word: str) -> None:
    assert verdict_of(judge_memory.judge_memlock(limit), word) is OK


@pytest.mark.parametrize(
    ("found", "verdict"), [(Swap(0, False), OK), (Swap(GIB, True), OK), (Swap(GIB, False), WARN)]
)
def test_swap_that_slots_may_go_to_is_a_warning(found: Swap, verdict: Verdict) -> None:
    assert verdict_of(judge_memory.judge_swap(found)) is verdict


@pytest.mark.parametrize(
    ("option", "kernel", "pages"),
    [
        ("never", "never", "small pages"),
        ("never", "advise", "small pages"),  # that is for shared memory without a mount
        ("advise", "never", "have huge pages"),
        ("always", "advise", "have huge pages"),
        ("never", "force", "have huge pages"),
        ("advise", "deny", "small pages"),
        ("advise", "", "small pages"),
    ],
)
def test_the_mount_decides_on_huge_pages_unless_the_kernel_does_for_all(
    option: str, kernel: str, pages: str
) -> None:
    line = judge_memory.judge_huge_pages(HugePages(SHM, option, kernel))
    assert verdict_of(line, pages) is OK
    assert ("remount" in line.found) is (pages == "small pages" and kernel not in ("", "deny"))


@pytest.mark.parametrize(
    ("found", "verdict", "word"),
    [
        (Nodes(1, {}), OK, "one"),
        (Nodes(2, {}), OK, "numactl --membind"),
        (Nodes(2, {1: 64}), OK, "64 on node 1"),
        (Nodes(2, {1: 60, 0: 4}), WARN, "4 on node 0, 60 on node 1"),
    ],
)
def test_pages_on_several_nodes_are_a_warning(found: Nodes, verdict: Verdict, word: str) -> None:
    assert verdict_of(judge_memory.judge_nodes(found), word) is verdict


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (User(1000, "anna", frozenset({1000})), OK),
        (User(1000, "anna", frozenset({1000, 7}), "staff", 7), OK),
        (User(0, "root", frozenset({0}), "staff", 7), OK),
        (User(1000, "anna", frozenset({1000}), "staff", 7), FAIL),
    ],
)
def test_a_user_has_to_be_in_the_group_that_it_lets_in(found: User, verdict: Verdict) -> None:
    assert verdict_of(judge_access.judge_user(found)) is verdict


FOLDER = Folder(Path(POOL), True, mode=0o700)


@pytest.mark.parametrize(
    ("changes", "verdict", "word"),
    [
        ({}, OK, "mode 0700"),
        ({"layout_version": LAYOUT_VERSION}, OK, "mode 0700"),
        ({"is_there": False, "mode": None}, OK, "yet to be made"),
        ({"is_there": False, "mode": None, "parent_is_there": False}, FAIL, "no folder /dev/shm;"),
        ({"is_there": False, "mode": None, "is_writable": False}, FAIL, "may not write in /dev/shm;"),
        ({"fault": "it is another's", "remedy": "choose another"}, FAIL, "it is another's"),
        ({"layout_version": LAYOUT_VERSION + 1}, FAIL, f"rm -r {POOL}"),
    ],
)
def test_a_pool_folder_has_to_be_ones_own_and_of_this_layout(
    changes: dict[str, object], verdict: Verdict, word: str
) -> None:
    found = dataclasses.replace(FOLDER, **changes)  # type: ignore[arg-type]
    assert verdict_of(judge_access.judge_pool_folder(found), word) is verdict


SOCKETS = Folder(Path("/run/x"), True, is_made=False, mode=0o755)
OPEN = dataclasses.replace(SOCKETS, mode=0o777)


@pytest.mark.parametrize(
    ("found", "verdict", "word"),
    [
        ([], OK, "no ipc endpoint"),
        ([SOCKETS], OK, "mode 0755"),
        ([Folder(Path("/tmp"), True, is_made=False, mode=0o1777)], OK, "mode 1777"),
        ([SOCKETS, OPEN], WARN, "chmod o-w /run/x"),
        ([OPEN, Folder(Path("/run/y"), False, is_made=False), SOCKETS], FAIL, "there is no folder /run/y;"),
        ([dataclasses.replace(SOCKETS, is_writable=False)], FAIL, "not write in /run/x"),
    ],
)
def test_sockets_need_a_folder_in_which_others_remove_nothing(
    found: list[Folder], verdict: Verdict, word: str
) -> None:
    assert verdict_of(judge_access.judge_socket_folders(found), word) is verdict


IPC = ("ipc:///run/c", "ipc:///run/d")
TCP = ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")


@pytest.mark.parametrize(
    ("found", "verdict", "word"),
    [
        (Keys("", 0, IPC), OK, "guarded by the file system"),
        (Keys("key", 2, TCP), OK, "2 authorised clients"),
        (Keys("key", 2, IPC), OK, "no tcp endpoint uses them"),
        (Keys("", 0, TCP), WARN, "every user of this host"),
        (Keys("", 0, TCP, ("tcp://*:1",)), WARN, "everybody who reaches tcp://*:1 may enter"),
    ],
)
def test_a_tcp_endpoint_without_keys_is_a_warning(found: Keys, verdict: Verdict, word: str) -> None:
    assert verdict_of(judge_access.judge_keys(found), word) is verdict


SERVING = Answer("forebay daemon pid 1 on vm", "1.0", 3.2, False, POOL)
ENDING = dataclasses.replace(SERVING, is_draining=True)


@pytest.mark.parametrize(
    ("found", "now", "before_start"),
    [
        (Running(POOL, False), OK, OK),
        (Running(POOL, True, "x", SERVING), OK, FAIL),
        (Running(POOL, True, "x", ENDING), OK, WARN),
        (Running(POOL, True, "x", silence="no answer"), FAIL, WARN),
        (Running(POOL, True, "x", silence="keys", was_asked=False), OK, WARN),
        (Running("/other", True, "x", SERVING), FAIL, FAIL),
    ],
)
def test_a_daemon_that_serves_is_well_but_in_the_way_of_another_and_one_that_ends_may_be_gone_by_then(
    found: Running, now: Verdict, before_start: Verdict
) -> None:
    assert verdict_of(judge_presence.judge_running(found, before_start=False)) is now
    assert verdict_of(judge_presence.judge_running(found, before_start=True)) is before_start


@pytest.mark.parametrize(
    ("at", "verdict", "word"),
    [
        (At.NOBODY, OK, "is free"),
        (At.DAEMON, OK, "the running daemon's"),
        (At.FOREIGN, WARN, "would take its place"),
        (At.OTHER, FAIL, "held by who; stop it first, or set data_endpoint to another address"),
        (At.NOWHERE, FAIL, "cannot be bound: who"),
    ],
)
def test_an_address_that_another_process_has_fails(at: At, verdict: Verdict, word: str) -> None:
    line = judge_presence.judge_address(Address("data_endpoint", "tcp://h:1", at, "who"))
    assert (line.check, verdict_of(line, word)) == ("data endpoint", verdict)


def test_what_a_holder_says_of_itself_drives_no_terminal() -> None:
    hostile = "a\x1b[31m\n\u202eb"
    lines = (
        judge_presence.judge_address(Address("data_endpoint", "tcp://h:1", At.OTHER, hostile)),
        judge_presence.judge_running(Running(POOL, True, hostile), before_start=False),
        judge_presence.judge_running(
            Running(POOL, True, "", Answer(hostile, hostile, 1, False, hostile)), before_start=False
        ),
        judge_host.judge_versions(Versions("1", 4, 2, "3.11", hostile)),
    )
    for line in lines:
        assert line.found.isprintable(), line


LOGOUT = Logout(True, True, "", 1000, 999, lingers=False, is_concerned=True)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, WARN),
        ({"source": "/etc/systemd/logind.conf"}, WARN),
        ({"has_logind": False}, OK),
        ({"removes": False, "source": "/etc/systemd/logind.conf"}, OK),
        ({"uid": 999}, OK),
        ({"uid": 0}, OK),
        ({"lingers": True}, OK),
        ({"is_concerned": False}, OK),
    ],
)
def test_a_pool_that_a_logout_removes_is_a_warning(changes: dict[str, object], verdict: Verdict) -> None:
    found = dataclasses.replace(LOGOUT, **changes)  # type: ignore[arg-type]
    assert verdict_of(judge_host.judge_logout(found)) is verdict


@pytest.mark.parametrize(
    ("private", "address", "verdict"),
    [
        ([], "ipc:///tmp/x/c.sock", OK),
        ([Path("/tmp")], "ipc:///run/c.sock", OK),
        ([Path("/tmp")], "ipc:///tmpfiles/c.sock", OK),
        ([Path("/tmp")], "tcp://127.0.0.1:1", OK),
        ([Path("/var/tmp"), Path("/tmp")], "ipc:///tmp/x/c.sock", WARN),
    ],
)
def test_an_endpoint_in_a_private_tmp_is_a_warning(private: list[Path], address: str, verdict: Verdict) -> None:
    assert verdict_of(judge_host.judge_private_tmp(private, {"control_endpoint": address})) is verdict


@pytest.mark.parametrize(
    ("offsets", "verdict"),
    [
        ({}, OK),
        ({"monotonic": "0 0", "boottime": "5 0"}, OK),
        ({"monotonic": "-5 0"}, WARN),
        ({"monotonic": "0 7"}, WARN),
    ],
)
def test_a_shifted_monotonic_clock_is_a_warning(offsets: dict[str, str], verdict: Verdict) -> None:
    assert verdict_of(judge_host.judge_clock(offsets)) is verdict


@pytest.mark.parametrize(("fitting", "verdict"), [(1024, OK), (1023, WARN)])
def test_too_few_descriptors_for_max_connections_are_a_warning(fitting: int, verdict: Verdict) -> None:
    assert verdict_of(judge_host.judge_descriptors(5000, fitting, 1024), str(fitting)) is verdict


@pytest.mark.parametrize(("daemon", "verdict"), [(None, OK), ("1.0", OK), ("0.9", WARN)])
def test_a_daemon_of_another_version_is_a_warning(daemon: str | None, verdict: Verdict) -> None:
    assert verdict_of(judge_host.judge_versions(Versions("1.0", 4, 2, "3.11.7", daemon))) is verdict


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (Jax(None, None, "0.7"), OK),
        (Jax("0.10.2", "0.10.2", "0.7"), OK),
        (Jax("0.10.2", "0.10.2"), OK),
        (Jax("0.6.9", "0.6.9", "0.7"), WARN),
        (Jax("0.10.2", None, "0.7"), WARN),
    ],
)
def test_a_jax_that_a_trainer_cannot_use_is_a_warning_and_none_is_well(found: Jax, verdict: Verdict) -> None:
    assert verdict_of(judge_host.judge_jax(found)) is verdict


@pytest.mark.parametrize(
    ("found", "verdict", "word"),
    [
        (SelfTest(1, 2, 10**9, 0.5), OK, "2 GB/s"),
        (SelfTest(2 * MIB, MIB), WARN, "skipped: it needs 2 MiB of shared memory, and 1 MiB are free"),
        (SelfTest(1, 2, trouble="no answer"), FAIL, "no answer"),
        (SelfTest(1, 2, 10, 0.5, ("['x']",)), FAIL, "not what was sent: ['x']"),
    ],
)
def test_a_self_test_that_found_other_bytes_fails(found: SelfTest, verdict: Verdict, word: str) -> None:
    assert verdict_of(judge_host.judge_self_test(found), word) is verdict


def test_an_error_becomes_a_line_with_its_remedy_apart() -> None:
    line = failed_by("keys", SettingError("setting key_file", got="x", limit="y", remedy="chmod 600 x"))
    assert line == Line("keys", FAIL, "setting key_file; got x; limit y", "chmod 600 x")
    assert failed_by("keys", SettingError("setting key_file")).remedy


@pytest.mark.parametrize(
    ("verdicts", "plain", "strict"), [((OK,), False, False), ((OK, WARN), False, True), ((FAIL, OK), True, True)]
)
def test_warnings_count_only_where_that_is_asked_for(
    verdicts: tuple[Verdict, ...], plain: bool, strict: bool
) -> None:
    lines = [Line("x", verdict, "y") for verdict in verdicts]
    assert (is_bad(lines), is_bad(lines, strict=True)) == (plain, strict)
