"""What the benchmark of ingest is given, and what it comes to."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from forebay.wire import CODECS, RAW, SettingError

WAYS: Final = (
    "raw_tcp",
    "raw_tcp_pieces",
    "forebay_tcp",
    "forebay_encrypted",
    "forebay_authenticated",
    "raw_unix",
    "forebay_ipc",
    "grpc_unary",
    "grpc_stream",
    "flight",
    "transfer_queue",
)
"""In the order in which they take their turns."""
GROUPS: Final = ("peers", "keys", "leaves", "linear", "memory", "first")

Spread: TypeAlias = tuple[float, float]
"""The least and the greatest."""


class IngestBenchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is run.

    Attributes:
        payload_mib: MiB of a micro-batch, where a group has no sizes of its own.
        leaves: Leaves that it consists of, all of one size.
        pairs: Rounds: each way, or each of two sizes, takes its turn once in each.
        codec: How Forebay's client lets arrays travel, `auto` or one of `forebay.wire.CODECS`.
        keeps_freed: Whether the allocator of the peers' processes keeps what is freed. By default glibc does not,
            and a peer that holds whole micro-batches gets pages each time that the kernel has to zero first.
        connections: That Forebay's client makes for bulk data.
        groups: What is measured, of `GROUPS`.
        ways: What is compared, of `WAYS`.
        many_leaves: Leaves that are compared with one.
        linear_mib: MiB of the two micro-batches whose seconds a byte are compared, the smaller one first.
        memory_mib: MiB of the micro-batches after which the daemon's memory is looked at.
        first_mib: MiB of the micro-batches that are a daemon's first.
        daemons: Fresh daemons whose first micro-batch is timed.
    """

    payload_mib: float = 1024.0
    leaves: int = 1
    pairs: int = 7
    codec: str = RAW
    keeps_freed: bool = False
    connections: int = 1
    groups: tuple[str, ...] = GROUPS
    ways: tuple[str, ...] = WAYS
    many_leaves: int = 64
    linear_mib: tuple[float, float] = (256.0, 2048.0)
    memory_mib: tuple[float, ...] = (256.0, 1024.0, 4096.0)
    first_mib: float = 256.0
    daemons: int = 7

    def __post_init__(self) -> None:
        for name, low, high in (
            ("payload_mib", 1, 7168),
            ("leaves", 1, 4096),
            ("pairs", 1, 1000),
            ("connections", 1, 64),
            ("many_leaves", 1, 4096),
            ("linear_mib", 1, 7168),
            ("memory_mib", 1, 7168),
            ("first_mib", 1, 7168),
            ("daemons", 1, 1000),
        ):
            value = getattr(self, name)
            values = value if isinstance(value, tuple) else (value,)
            if not values or not all(low <= each <= high for each in values):
                raise SettingError(f"setting {name}", got=value, limit=f"{low} to {high}")
        for name, known in (("groups", GROUPS), ("ways", WAYS), ("codec", ("auto", *CODECS))):
            chosen = getattr(self, name)
            chosen = (chosen,) if isinstance(chosen, str) else chosen
            if not chosen or not set(chosen) <= set(known):
                raise SettingError(f"setting {name}", got=chosen, limit=", ".join(known))


class WayResult(msgspec.Struct, frozen=True, kw_only=True):
    """One way; a GB is 10^9 bytes.

    Attributes:
        seconds: Of each round, from before the first byte is sent until the last lies in the warm memory.
        gb_s: GB a second, median.
        gb_s_spread: Over the rounds.
        sender_cpu_s_per_gb: Seconds of CPU of the sender's process a GB.
        receiver_cpu_s_per_gb: The same of the receiver's process.
        sender_private_mib: Most private memory of the sender's process that was seen; its data is not in it.
        receiver_private_mib: The same of the receiver's process; the warm memory is not in it.
    """

    seconds: list[float]
    gb_s: float
    gb_s_spread: Spread
    sender_cpu_s_per_gb: float
    receiver_cpu_s_per_gb: float
    sender_private_mib: float
    receiver_private_mib: float


class IngestBenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came out: medians of ratios within a round, and the least and the greatest of them in `..._spread`.

    What was not measured is None.

    Attributes:
        ways: What each way came to, by its name.
        skipped: Ways that were left out, and why.
        over_raw_tcp: Seconds of raw TCP over those of `forebay_tcp`: 1 is as fast, more is faster than raw.
        over_raw_tcp_pieces: The same of the fastest form of raw TCP that was found: pieces of 1 MiB, each call
            waiting for all of its piece.
        over_raw_unix: The same of a raw Unix socket over `forebay_ipc`.
        over_grpc_unary: Seconds of one pickled gRPC message over those of `forebay_tcp`.
        over_grpc_stream: The same of a gRPC stream.
        over_flight: The same of Arrow Flight.
        over_transfer_queue: The same of TransferQueue.
        encrypted_over_plain: Throughput of `forebay_encrypted` over that of `forebay_tcp`, which has no keys: what
            CURVE on the data leaves of it.
        authenticated_over_plain: The same of `forebay_authenticated`, where the control connection alone is
            encrypted.
        leaves_64_over_1: Throughput with many leaves over that with one, through one daemon. Named after the
            default of `many_leaves`.
        linear: Seconds a GB of the larger micro-batch over those of as many smaller ones as have its bytes.
        daemon_private_mib: Most private MiB of a fresh daemon that were seen, by the MiB of its two micro-batches.
        daemon_private_mib_max: The greatest of them.
        first_over_steady: Seconds of a fresh daemon's first micro-batch over the median of its fifth to tenth. The
            first has the making of the connections for bulk data in it, the second has not; the pages of the slot
            are reserved before the daemon says that it is ready, and the hello is over.
        settings: As they were set.
        wire: What stood for the wire.
        memory: Where the bytes come from and go to.
        took_s: Seconds of the whole run.
    """

    ways: dict[str, WayResult] = {}
    skipped: dict[str, str] = {}
    over_raw_tcp: float | None = None
    over_raw_tcp_spread: Spread | None = None
    over_raw_tcp_pieces: float | None = None
    over_raw_tcp_pieces_spread: Spread | None = None
    over_raw_unix: float | None = None
    over_raw_unix_spread: Spread | None = None
    over_grpc_unary: float | None = None
    over_grpc_unary_spread: Spread | None = None
    over_grpc_stream: float | None = None
    over_grpc_stream_spread: Spread | None = None
    over_flight: float | None = None
    over_flight_spread: Spread | None = None
    over_transfer_queue: float | None = None
    over_transfer_queue_spread: Spread | None = None
    encrypted_over_plain: float | None = None
    encrypted_over_plain_spread: Spread | None = None
    authenticated_over_plain: float | None = None
    authenticated_over_plain_spread: Spread | None = None
    leaves_64_over_1: float | None = None
    leaves_64_over_1_spread: Spread | None = None
    linear: float | None = None
    linear_spread: Spread | None = None
    daemon_private_mib: dict[str, float] = {}
    daemon_private_mib_max: float | None = None
    first_over_steady: float | None = None
    first_over_steady_spread: Spread | None = None
    settings: IngestBenchSettings
    wire: str
    memory: str
    took_s: float
