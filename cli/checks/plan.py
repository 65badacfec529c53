"""All checks, in the order in which they are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from forebay.wire.errors import ForebayError

from . import (
    judge_access,
    judge_host,
    judge_memory,
    judge_presence,
    look_access,
    look_host,
    look_http,
    look_memory,
)
from .case import Case
from .line import Line, failed_by, ok, warn
from .look_presence import look_at_address


class Check(NamedTuple):
    """One check.

    Attributes:
        name: It.
        meaning: What it looks at, in one line.
        run: Looks and judges.
        is_of_start: Whether it tells what would keep a daemon from its start.
    """

    name: str
    meaning: str
    run: Callable[[Case], Line]
    is_of_start: bool = False


def _pool_mount(case: Case) -> Line:
    from forebay.shm.memory import mount_point
    from forebay.shm.mounts import check_in_memory, kind_of_mount

    check_in_memory(case.pool)
    mount = mount_point(case.pool)
    return ok("pool mount", f"{mount} is a {kind_of_mount(mount, case.text('proc/self/mountinfo')) or 'mount'}")


def _self_test(case: Case) -> Line:
    from .self_test import run_self_test

    return judge_host.judge_self_test(run_self_test(case))


def _address_of(setting: str) -> Callable[[Case], Line]:
    return lambda case: judge_presence.judge_address(look_at_address(case, setting))


def _http_address(case: Case) -> Line:
    found = look_http.look_at_http(case)
    return ok("http endpoint", "none is set") if found is None else judge_presence.judge_address(found)


SETTINGS = "settings"
SELF_TEST = "self-test"

CHECKS = (
    Check("pool mount", "the pool lies in shared memory, not on a disk", _pool_mount, True),
    Check(
        "pool room",
        "room on the pool's mount: for the start, and for slots that have grown to `slot_max_bytes`",
        lambda case: judge_memory.judge_room(look_memory.look_at_room(case)),
        True,
    ),
    Check(
        "memory limit",
        "the same in the control group with the least room, of either version: shared memory counts there",
        lambda case: judge_memory.judge_group(look_memory.look_at_group(case)),
        True,
    ),
    Check(
        "user",
        "who runs this, and whether it is in the setting `group`",
        lambda case: judge_access.judge_user(look_access.look_at_user(case)),
        True,
    ),
    Check(
        "pool folder",
        "it is this user's, or can be made; slots that were left there have this version's layout",
        lambda case: judge_access.judge_pool_folder(look_access.look_at_pool_folder(case)),
        True,
    ),
    Check(
        "socket folder",
        "ipc endpoints can be made there",
        lambda case: judge_access.judge_socket_folders(look_access.look_at_socket_folders(case)),
        True,
    ),
    Check(
        "keys",
        "key files can be read, and by nobody else; who enters at tcp endpoints",
        lambda case: judge_access.judge_keys(look_access.look_at_keys(case)),
        True,
    ),
    Check(
        "daemon",
        "who has the pool, and whether it answers",
        lambda case: judge_presence.judge_running(case.running, before_start=case.before_start),
        True,
    ),
    *(
        Check(name.replace("_", " "), words, _address_of(name), True)
        for name, words in (
            ("control_endpoint", "the address is free, or whose it is; an ipc path has up to 107 bytes"),
            ("data_endpoint", "the same"),
            ("trainer_endpoint", "the same"),
        )
    ),
    Check("http endpoint", "the same for `http_endpoint`, where it is set", _http_address, True),
    Check(
        "descriptors",
        "they suffice for `max_connections`",
        lambda case: judge_host.judge_descriptors(*look_host.look_at_descriptors(case)),
    ),
    Check(
        "RemoveIPC",
        "systemd does not remove the pool when its user logs out",
        lambda case: judge_host.judge_logout(look_host.look_at_logout(case)),
    ),
    Check(
        "PrivateTmp",
        "endpoints do not lie in a /tmp that only this unit sees",
        lambda case: judge_host.judge_private_tmp(look_host.private_folders(case), case.endpoints),
    ),
    Check(
        "clock",
        "the monotonic clock is the host's, so that one daemon and the next agree on ages",
        lambda case: judge_host.judge_clock(look_host.clock_offsets(case)),
    ),
    Check(
        "memlock",
        "how much memory a trainer's device driver may lock; Forebay locks none",
        lambda _: judge_memory.judge_memlock(look_memory.memlock_bytes()),
    ),
    Check(
        "swap",
        "slots stay in memory",
        lambda case: judge_memory.judge_swap(look_memory.look_at_swap(case)),
    ),
    Check(
        "huge pages",
        "slots can have them: the mount's option `huge=`, and the kernel's `shmem_enabled`",
        lambda case: judge_memory.judge_huge_pages(look_memory.look_at_huge_pages(case)),
    ),
    Check(
        "memory nodes",
        "on a host with several, where the slots' pages lie",
        lambda case: judge_memory.judge_nodes(look_memory.look_at_nodes(case)),
    ),
    Check(
        "versions",
        "what is installed, and whether the running daemon is the same",
        lambda case: judge_host.judge_versions(look_host.look_at_versions(case)),
    ),
    Check(
        "trainer",
        "whether jax is installed, and new enough for a trainer; it is not imported",
        lambda _: judge_host.judge_jax(look_host.look_at_jax()),
    ),
    Check(
        SELF_TEST, "one micro-batch of 64 MiB through a private daemon, read back from the slot's file", _self_test
    ),
)
"""Without the settings themselves, which come first."""


def examine(case: Case, *, self_test: bool = True) -> Iterator[Line]:
    """Runs the checks, one after another.

    Args:
        case: What they are about; before a start, those alone that tell what would keep a daemon from it.
        self_test: Whether to stage a micro-batch.
    """
    for check in CHECKS:
        is_wanted = check.is_of_start or not case.before_start
        if is_wanted and (self_test or check.name != SELF_TEST):
            yield _run(check, case)


def _run(check: Check, case: Case) -> Line:
    try:
        return check.run(case)
    except ForebayError as error:
        return failed_by(check.name, error)
    except OSError as error:
        words = f"{error.filename or 'it'} cannot be looked at ({error.strerror or error})"
        return warn(check.name, words, "run this as the daemon's user")
