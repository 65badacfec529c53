"""What the benchmark and its child processes tell each other, a line of JSON each."""

from __future__ import annotations

import msgspec


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a child process is started with.

    Attributes:
        source: Path of the sender's data.
        target: Path of the receiver's warm memory; empty where a daemon receives.
        folder: For files of its own, of TransferQueue's receiver alone; removed after the run.
        keeps_freed: Whether its allocator is to keep what is freed.
        codec: How Forebay's client is to let arrays travel.
        connections: That Forebay's client is to make for bulk data.
        client_key_file: Secret key file of Forebay's client; empty where the daemon has no keys.
        server_key_file: Public key file of the daemon, as the one before.
    """

    source: str
    target: str = ""
    folder: str = ""
    keeps_freed: bool = False
    codec: str = "raw"
    connections: int = 1
    client_key_file: str = ""
    server_key_file: str = ""


class Started(msgspec.Struct, frozen=True):
    """A child's first line.

    Attributes:
        address: Where a receiver listens.
        missing: Why it cannot run here; then it ends.
    """

    address: str = ""
    missing: str = ""


class Receive(msgspec.Struct, frozen=True):
    """Has a receiver wait for one micro-batch. The answers are `Waiting` and `Received`.

    Attributes:
        nbytes: Bytes of the micro-batch.
        is_checked: Whether to tell what lies in its memory afterwards.
    """

    nbytes: int
    is_checked: bool


class Waiting(msgspec.Struct, frozen=True):
    """The receiver waits from now on."""


class Received(msgspec.Struct, frozen=True):
    """A micro-batch has arrived.

    Attributes:
        ended_at: Monotonic second when the last byte lay in the memory.
        digest: xxh3-64 in hexadecimal of what lies there, if asked for.
    """

    ended_at: float
    digest: str


class Send(msgspec.Struct, frozen=True):
    """Has a sender send one micro-batch from the start of its data. The answer is `Sent`.

    Attributes:
        address: Of the receiver, or a daemon's control endpoint; the sender connects before, if it has not yet.
        leaf_bytes: Bytes of each leaf, a multiple of 64.
        leaves: How many of them.
    """

    address: str
    leaf_bytes: int
    leaves: int


class Sent(msgspec.Struct, frozen=True):
    """A micro-batch was sent.

    Attributes:
        began_at: Monotonic second before the first byte.
        ended_at: Monotonic second when the sending call was over.
    """

    began_at: float
    ended_at: float
