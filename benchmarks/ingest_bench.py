"""The benchmark of ingest: Forebay beside other ways for a micro-batch from one process into warm shared memory.

All processes are real and on this host. Each way has a sender's and a receiver's process; the ways take turns, so
that whatever else the machine does hits all of them, and figures are ratios within a round. The clock runs from
before the first byte is sent until the last one lies in memory whose pages were touched before; for Forebay, from
the call of `stage` to its return, which includes the offer, the checksums and the publication.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import msgspec

from forebay.shm import free_bytes
from forebay.wire import MIB, ShmFullError

from .ingest_groups import (
    compare_leaves,
    compare_sizes,
    compare_ways,
    daemon_memory,
    first_stages,
    median_and_spread,
    say,
)
from .ingest_keys import PROTECTIONS
from .ingest_result import WAYS, IngestBenchResult, IngestBenchSettings, WayResult

_SHM: Final = Path("/dev/shm")
_ALLOCATORS: Final = {
    False: "the peers' allocators give back what is freed, as is their default",
    True: "the peers' allocators keep what is freed, which is not their default",
}
_PEERS: Final = ("grpc_unary", "grpc_stream", "flight", "transfer_queue")
_TURNS: Final = (
    ("keys", ("forebay_tcp", *PROTECTIONS)),
    ("peers", ("forebay_tcp", *_PEERS)),
    ("peers", tuple(name for name in WAYS if name not in _PEERS and name not in PROTECTIONS)),
)
"""The group and the ways of each set that takes turns; a way's own figures are those of its last set."""
_RATIOS: Final = {
    "over_raw_tcp": ("raw_tcp", "forebay_tcp"),
    "over_raw_tcp_pieces": ("raw_tcp_pieces", "forebay_tcp"),
    "over_raw_unix": ("raw_unix", "forebay_ipc"),
    "over_grpc_unary": ("grpc_unary", "forebay_tcp"),
    "over_grpc_stream": ("grpc_stream", "forebay_tcp"),
    "over_flight": ("flight", "forebay_tcp"),
    "over_transfer_queue": ("transfer_queue", "forebay_tcp"),
    "encrypted_over_plain": ("forebay_tcp", "forebay_encrypted"),
    "authenticated_over_plain": ("forebay_tcp", "forebay_authenticated"),
}


def run(settings: IngestBenchSettings) -> IngestBenchResult:
    """Runs the whole benchmark; nothing of it is left when this returns or raises.

    Args:
        settings: What is run.

    Raises:
        ShmFullError: There is too little shared memory for it.
        BrokenError: A process ended badly, or bytes arrived that are not those that were sent.
        WaitTimeoutError: Something takes far too long.
    """
    _check_room(settings)
    began_at = time.monotonic()
    found = _compare(settings)
    for group, name, measure in (
        ("leaves", "leaves_64_over_1", compare_leaves),
        ("linear", "linear", compare_sizes),
        ("first", "first_over_steady", first_stages),
    ):
        if group in settings.groups:
            found |= _named(name, measure(settings))
    if "memory" in settings.groups:
        found["daemon_private_mib"] = daemon_memory(settings)
        found["daemon_private_mib_max"] = max(found["daemon_private_mib"].values())
    took_s = time.monotonic() - began_at
    say(f"done after {took_s:.0f} s")
    return IngestBenchResult(
        **found,
        settings=settings,
        wire="the loopback and Unix sockets of one host",
        memory="shared memory at both ends, touched before; " + _ALLOCATORS[settings.keeps_freed],
        took_s=took_s,
    )


def _compare(settings: IngestBenchSettings) -> dict[str, Any]:
    """Compares with plain sockets, and apart from those with peers that take gigabytes and give them back."""
    found: dict[str, Any] = {"ways": {}, "skipped": {}}
    for group, names in _TURNS:
        chosen = tuple(name for name in settings.ways if name in names)
        has_nothing_beside_it = set(chosen) <= {"forebay_tcp"} and len(settings.ways) > 1
        if group not in settings.groups or not chosen or has_nothing_beside_it:
            continue
        ways, skipped = compare_ways(msgspec.structs.replace(settings, ways=chosen))
        found["ways"] |= ways
        found["skipped"] |= skipped
        found |= _ratios(ways)
    found["ways"] = {name: found["ways"][name] for name in WAYS if name in found["ways"]}
    return found


def _ratios(ways: dict[str, WayResult]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (other, one) in _RATIOS.items():
        if other in ways and one in ways:
            pairs = zip(ways[other].seconds, ways[one].seconds, strict=True)
            found |= _named(name, [other_s / one_s for other_s, one_s in pairs])
    return found


def _named(name: str, ratios: list[float]) -> dict[str, Any]:
    median, spread = median_and_spread(ratios)
    return {name: median, f"{name}_spread": spread}


def _check_room(settings: IngestBenchSettings) -> None:
    """Checks before the first minutes are spent whether the shared memory suffices for the last of them."""
    # What is sent, what it is sent to, and the slots of two or three daemons; else what is sent and one slot.
    need_mib = {
        "peers": 4 * settings.payload_mib,
        "keys": 5 * settings.payload_mib,
        "leaves": 2 * settings.payload_mib,
        "linear": 2 * max(settings.linear_mib),
        "memory": 2 * max(settings.memory_mib),
        "first": 2 * settings.first_mib,
    }
    need_bytes = int(max(need_mib[group] for group in settings.groups) * MIB) + 64 * MIB
    free = free_bytes(_SHM)
    if free < need_bytes:
        raise ShmFullError(
            f"shared memory at {_SHM} is too small for the benchmark",
            got=f"{free} bytes free",
            limit=f"{need_bytes} bytes needed",
            remedy="ask for smaller micro-batches or fewer groups",
        )
