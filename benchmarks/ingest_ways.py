"""The ways of the benchmark of ingest, as its own process sees them: a sender and whatever receives."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import mmap
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from forebay.daemon import LocalDaemon, local_daemon
from forebay.shm import BODY_OFFSET, slot_path
from forebay.wire import GIB, MIB, BrokenError, ForebayError

from .handoff_child import Child
from .ingest_keys import NO_KEYS, PROTECTIONS, Keys, make_keys
from .ingest_result import IngestBenchSettings
from .peers.messages import Job, Receive, Received, Send, Sent, Started, Waiting
from .peers.region import Region, digest
from .process_cost import ProcessCost

_START_S: Final = 300.0
_ROUND_S: Final = 150.0
_ALIGNMENT: Final = 64
_HEADER_BYTES: Final = 2 * MIB
_GRPC_MESSAGE_BYTES: Final = 2 * GIB - MIB
_LOOPBACK: Final = "tcp://127.0.0.1:*"
_ENDPOINTS: Final = ("control_endpoint", "data_endpoint")
_FOREBAY: Final = "forebay_stage"


class MissingPeerError(ForebayError):
    """A way cannot be run here; `what` is the reason."""


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """Of a micro-batch.

    Attributes:
        leaf_bytes: Bytes of each leaf, so many that they follow each other without gaps.
        leaves: How many leaves.
    """

    leaf_bytes: int
    leaves: int

    @classmethod
    def of(cls, mib: float, leaves: int = 1) -> Size:
        """Returns the largest within so many MiB."""
        return cls(max(_ALIGNMENT, int(mib * MIB) // leaves // _ALIGNMENT * _ALIGNMENT), leaves)

    @property
    def nbytes(self) -> int:
        """Bytes of all leaves."""
        return self.leaf_bytes * self.leaves


class Way(abc.ABC):
    """One way for micro-batches from a sender's process into warm memory.

    Args:
        name: For messages.
        sender: Its process.
        address: Where it is to connect to.
        receiver_pid: The process that receives.

    Attributes:
        sender_cost: What the sender's process cost in the rounds that were watched.
        receiver_cost: The same of the receiver's process.
    """

    def __init__(self, name: str, sender: Child, address: str, receiver_pid: int) -> None:
        self.name = name
        self.sender_cost = ProcessCost(sender.pid)
        self.receiver_cost = ProcessCost(receiver_pid)
        self._sender = sender
        self._address = address

    def watched(self, size: Size) -> float:
        """Has one micro-batch sent while both processes are watched; returns its seconds."""
        with self.sender_cost, self.receiver_cost:
            return self.send(size)

    def check(self, size: Size, expected: str) -> None:
        """Has one micro-batch sent, and looks at the memory afterwards.

        Raises:
            BrokenError: Its bytes are not those whose digest is expected.
        """
        got = self.sent_digest(size)
        if got != expected:
            raise BrokenError(f"the bytes that {self.name} brought are others", got=got, limit=expected)

    @abc.abstractmethod
    def send(self, size: Size) -> float:
        """Has one micro-batch sent; returns its seconds."""

    @abc.abstractmethod
    def sent_digest(self, size: Size) -> str:
        """Has one micro-batch sent; returns the digest of the memory afterwards."""

    def _say_send(self, size: Size) -> None:
        self._sender.say(Send(self._address, size.leaf_bytes, size.leaves))

    def _hear_sent(self) -> Sent:
        return self._sender.hear(Sent, _ROUND_S, "to have sent a micro-batch")


class PeerWay(Way):
    """A way with a receiver's process of its own; see `Way`."""

    def __init__(self, name: str, sender: Child, receiver: Child, address: str) -> None:
        super().__init__(name, sender, address, receiver.pid)
        self._receiver = receiver

    def send(self, size: Size) -> float:
        """See `Way`."""
        sent, received = self._round(size, is_checked=False)
        return received.ended_at - sent.began_at

    def sent_digest(self, size: Size) -> str:
        """See `Way`."""
        return self._round(size, is_checked=True)[1].digest

    def _round(self, size: Size, *, is_checked: bool) -> tuple[Sent, Received]:
        self._receiver.say(Receive(size.nbytes, is_checked))
        self._receiver.hear(Waiting, _ROUND_S, "to wait for a micro-batch")
        self._say_send(size)
        sent = self._hear_sent()
        return sent, self._receiver.hear(Received, _ROUND_S, "to have received a micro-batch")


class DaemonWay(Way):
    """Forebay: the receiver is a daemon with one slot, and the clock stops when `stage` returns; see `Way`."""

    def __init__(self, name: str, sender: Child, daemon: LocalDaemon) -> None:
        super().__init__(name, sender, daemon.control_endpoint, daemon.pid)
        self._slot = slot_path(daemon.pool, 0)

    def send(self, size: Size) -> float:
        """See `Way`."""
        self._say_send(size)
        sent = self._hear_sent()
        return sent.ended_at - sent.began_at

    def sent_digest(self, size: Size) -> str:
        """See `Way`; a slot that is free again keeps its bytes until its next loan."""
        self.send(size)
        with (
            open(self._slot, "rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory,
            memoryview(memory)[BODY_OFFSET : BODY_OFFSET + size.nbytes] as body,
        ):
            return digest(body)


def start_daemon(nbytes: int, *, is_tcp: bool = True, keys: Keys = NO_KEYS) -> LocalDaemon:
    """Starts a daemon with one slot that holds so many bytes, touched before it says that it is ready."""
    own: dict[str, Any] = dict.fromkeys(_ENDPOINTS, _LOOPBACK) if is_tcp else {}
    own |= keys.daemon
    slot_bytes = nbytes + _HEADER_BYTES
    return local_daemon(slots=1, slot_initial_bytes=slot_bytes, slot_max_bytes=slot_bytes, drain_s=0, **own)


@contextlib.contextmanager
def stage_sender(source: Region, settings: IngestBenchSettings, keys: Keys = NO_KEYS) -> Iterator[Child]:
    """Starts a process with Forebay's client, for any number of daemons after each other."""
    job = Job(
        source=source.path,
        codec=settings.codec,
        connections=settings.connections,
        client_key_file=keys.client_key_file,
        server_key_file=keys.server_key_file,
    )
    with _child(_FOREBAY, "sender", job) as child:
        child.started(Started)
        yield child


@contextlib.contextmanager
def open_way(
    name: str, size: Size, source: Region, target: Region, settings: IngestBenchSettings
) -> Iterator[Way]:
    """Starts the processes of a way, and ends them.

    Args:
        name: One of `WAYS`.
        size: Of the largest micro-batch.
        source: What is sent.
        target: Where it goes, unless a daemon receives.
        settings: Of the run.

    Raises:
        MissingPeerError: It cannot be run here.
    """
    if name.startswith("forebay_"):
        with _daemon_way(name, size, source, settings) as way:
            yield way
        return
    if name == "grpc_unary" and size.nbytes > _GRPC_MESSAGE_BYTES:
        raise MissingPeerError("a gRPC message holds 2 GiB at most")
    with contextlib.ExitStack() as stack:
        # None of the others here has files, and what has none leaves none when this process is killed.
        folder = stack.enter_context(_folder()) if name == "transfer_queue" else ""
        job = Job(source=source.path, target=target.path, folder=folder, keeps_freed=settings.keeps_freed)
        receiver, sender = (stack.enter_context(_child(name, role, job)) for role in ("receiver", "sender"))
        heard = [child.started(Started) for child in (receiver, sender)]
        if missing := heard[0].missing or heard[1].missing:
            raise MissingPeerError(missing)
        yield PeerWay(name, sender, receiver, heard[0].address)


@contextlib.contextmanager
def _daemon_way(name: str, size: Size, source: Region, settings: IngestBenchSettings) -> Iterator[Way]:
    with contextlib.ExitStack() as stack:
        keys = NO_KEYS
        if name in PROTECTIONS:
            # All that a run leaves which is killed: keys of a daemon that has ended with it.
            keys = make_keys(Path(stack.enter_context(_folder())), PROTECTIONS[name])
        daemon = stack.enter_context(start_daemon(size.nbytes, is_tcp=name != "forebay_ipc", keys=keys))
        yield DaemonWay(name, stack.enter_context(stage_sender(source, settings, keys)), daemon)


def _folder() -> tempfile.TemporaryDirectory[str]:
    # Ray's processes may be writing still while they end.
    return tempfile.TemporaryDirectory(prefix="forebay-", ignore_cleanup_errors=True)


def _child(way: str, role: str, job: Job) -> Child:
    words = ["forebay.benchmarks.peers", way, role, msgspec.json.encode(job).decode()]
    return Child(f"{role} of {way}", words, start_s=_START_S)
