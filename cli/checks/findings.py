"""What is found on a host, before anybody judges it."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True)
class Room:
    """Bytes that a pool needs, and that there are.

    Attributes:
        place: The mount, or the control group, that has the room.
        limit_bytes: All that it may hold.
        free_bytes: What is left of it.
        start_bytes: What the start takes, beside what the pool has there already.
        grown_bytes: The same when each slot has grown to its limit.
    """

    place: Path
    limit_bytes: int
    free_bytes: int
    start_bytes: int
    grown_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Folder:
    """A folder that the daemon uses, or makes.

    Attributes:
        path: It.
        is_there: Whether there is something at that path.
        fault: Why the daemon could not take it as its own; empty if it could, or makes it.
        remedy: Against the fault.
        parent_is_there: Whether the folder around it is one.
        is_writable: Whether this user may make files in it, or the folder itself where it is not there.
        is_made: Whether the daemon makes it where it is not there.
        mode: Its permissions, None if it is not there.
        layout_version: Of the slots in it, None if it holds none.
    """

    path: Path
    is_there: bool
    fault: str = ""
    remedy: str = ""
    parent_is_there: bool = True
    is_writable: bool = True
    is_made: bool = True
    mode: int | None = None
    layout_version: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class User:
    """Who runs this.

    Attributes:
        uid: Effective user id.
        name: Of the user, empty if it has none.
        groups: Ids of all its groups.
        group: The setting `group`.
        gid: What that stands for; None where it is empty.
    """

    uid: int
    name: str
    groups: frozenset[int]
    group: str = ""
    gid: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What a running daemon says of itself, in its own words."""

    who: str
    software: str
    uptime_s: float
    is_draining: bool
    pool: str


@dataclasses.dataclass(frozen=True, slots=True)
class Running:
    """The daemon that has the pool.

    Attributes:
        pool: The pool's folder.
        is_held: Whether a living process holds it.
        holder: What that process wrote of itself, empty if nothing.
        answer: What it answered; None if it was not asked, or did not answer.
        silence: Why there is no answer.
        was_asked: Whether it was asked at all.
    """

    pool: str
    is_held: bool
    holder: str = ""
    answer: Answer | None = None
    silence: str = ""
    was_asked: bool = True


class At(enum.Enum):
    """Who is at an endpoint.

    Attributes:
        NOBODY: It can be bound.
        DAEMON: The daemon that has the pool.
        OTHER: Another process, which keeps the daemon from it.
        FOREIGN: A process that the daemon would take the address from.
        NOWHERE: It cannot be bound, whoever is there.
    """

    NOBODY = enum.auto()
    DAEMON = enum.auto()
    OTHER = enum.auto()
    FOREIGN = enum.auto()
    NOWHERE = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """An endpoint's address.

    Attributes:
        setting: Name of the setting that holds it.
        address: It.
        at: Who is there.
        words: Who that is, or why it cannot be bound.
        is_certain: Whether it was looked at; some addresses are known when they are bound.
    """

    setting: str
    address: str
    at: At
    words: str = ""
    is_certain: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Keys:
    """How tcp endpoints are guarded.

    Attributes:
        key_file: The setting, empty for none.
        clients: How many the file of authorised clients has.
        endpoints: Addresses of the control and the data endpoint.
        open_to_all: Those at which everybody may enter who reaches them from another host.
    """

    key_file: str
    clients: int
    endpoints: tuple[str, ...]
    open_to_all: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Logout:
    """What happens to a user's files in /dev/shm when its last session ends.

    Attributes:
        has_logind: Whether systemd runs here, as far as can be seen.
        removes: Whether RemoveIPC is on.
        source: The file that says so, empty where it is systemd's default.
        uid: The daemon's.
        max_system_uid: Up to it, users are the system's and keep their files.
        lingers: Whether the user's services outlive its sessions.
        is_concerned: Whether the pool lies in /dev/shm.
    """

    has_logind: bool
    removes: bool
    source: str
    uid: int
    max_system_uid: int
    lingers: bool
    is_concerned: bool


@dataclasses.dataclass(frozen=True, slots=True)
class HugePages:
    """Whether the kernel gives huge pages to the pool's mount.

    Attributes:
        mount: It.
        option: The mount's `huge=`; `never` where it has none.
        kernel: What is chosen in shmem_enabled; empty where the kernel knows none.
    """

    mount: Path
    option: str
    kernel: str


@dataclasses.dataclass(frozen=True, slots=True)
class Nodes:
    """The memory nodes of the host.

    Attributes:
        count: How many there are.
        pages: Node -> pages of the slots there, of those that were looked at.
    """

    count: int
    pages: dict[int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Swap:
    """Where shared memory may be written to when memory is short.

    Attributes:
        swap_bytes: Bytes of the host's swap.
        is_kept_out: Whether the pool's mount, or the control group, keeps its pages in memory.
    """

    swap_bytes: int
    is_kept_out: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Versions:
    """What runs here.

    Attributes:
        software: Of this package.
        protocol: Its protocol.
        layout: Of its slot files.
        python: Of the interpreter.
        daemon: The running daemon's package, None if none answers.
    """

    software: str
    protocol: int
    layout: int
    python: str
    daemon: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Jax:
    """What a trainer needs beside the package.

    Attributes:
        version: Of jax, None if it is not installed.
        jaxlib: Of jaxlib, None if it is not installed.
        needed: The least version of jax, as the package says it; empty if it cannot be known.
    """

    version: str | None
    jaxlib: str | None
    needed: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class SelfTest:
    """How one micro-batch went through a private daemon.

    Attributes:
        need_bytes: Shared memory that it takes.
        free_bytes: What there is.
        payload_bytes: Bytes of the micro-batch; 0 if it was not tried.
        seconds: From the call to the publication.
        wrong: Paths of leaves that differ in the slot's file.
        trouble: The error that ended it; empty if none did.
    """

    need_bytes: int
    free_bytes: int
    payload_bytes: int = 0
    seconds: float = 0.0
    wrong: tuple[str, ...] = ()
    trouble: str = ""
