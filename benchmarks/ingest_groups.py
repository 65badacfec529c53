"""The groups of the benchmark of ingest: each a set of figures that come from turns taken within one run."""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Iterator, Sequence

from forebay.wire import MIB

from .handoff_child import Child
from .ingest_result import IngestBenchSettings, Spread, WayResult
from .ingest_ways import DaemonWay, MissingPeerError, Size, Way, open_way, stage_sender, start_daemon
from .peers.region import Region, digest, map_warm

_GB = 1e9
_STAGES_OF_A_DAEMON = 10
_STEADY = slice(4, 10)
_STAGES_FOR_MEMORY = 2


def median_and_spread(ratios: Sequence[float]) -> tuple[float, Spread]:
    """Returns the median, and the least and the greatest."""
    return statistics.median(ratios), (min(ratios), max(ratios))


def compare_ways(settings: IngestBenchSettings) -> tuple[dict[str, WayResult], dict[str, str]]:
    """Lets all ways take turns with one size, after each has sent one micro-batch that is checked.

    Returns:
        What each came to, and why each other was skipped.
    """
    size = Size.of(settings.payload_mib, settings.leaves)
    skipped: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        source, target = stack.enter_context(_source(size)), stack.enter_context(Region(size.nbytes))
        expected = digest(map_warm(source.path))
        ways: list[Way] = []
        for name in settings.ways:
            try:
                ways.append(stack.enter_context(open_way(name, size, source, target, settings)))
            except MissingPeerError as error:
                skipped[name] = error.what
                say(f"{name} is skipped: {error.what}")
        for way in ways:
            say(f"ways: {way.name}, checked")
            target.clear()
            way.check(size, expected)
        seconds = _take_turns(ways, size, settings.pairs)
    return {way.name: _result_of(way, size, seconds[way.name]) for way in ways}, skipped


def _take_turns(ways: Sequence[Way], size: Size, rounds: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {way.name: [] for way in ways}
    for number in range(rounds):
        for way in ways:
            seconds[way.name].append(way.watched(size))
        told = ", ".join(f"{name} {size.nbytes / _GB / taken[-1]:.2f}" for name, taken in seconds.items())
        say(f"ways: round {number + 1} of {rounds}, GB/s: {told}")
    return seconds


def _result_of(way: Way, size: Size, seconds: list[float]) -> WayResult:
    gb = size.nbytes / _GB
    gb_s, spread = median_and_spread([gb / taken for taken in seconds])
    return WayResult(
        seconds=seconds,
        gb_s=gb_s,
        gb_s_spread=spread,
        sender_cpu_s_per_gb=way.sender_cost.cpu_s / (gb * len(seconds)),
        receiver_cpu_s_per_gb=way.receiver_cost.cpu_s / (gb * len(seconds)),
        sender_private_mib=way.sender_cost.peak_mib,
        receiver_private_mib=way.receiver_cost.peak_mib,
    )


def compare_leaves(settings: IngestBenchSettings) -> list[float]:
    """Returns throughput with many leaves over that with one, of each pair."""
    many, one = Size.of(settings.payload_mib, settings.many_leaves), Size.of(settings.payload_mib)
    say(f"leaves: {settings.pairs} pairs of {many.leaves} leaves and one")
    return [(many.nbytes / many_s) / (one.nbytes / one_s) for many_s, one_s in _in_pairs(many, one, settings)]


def compare_sizes(settings: IngestBenchSettings) -> list[float]:
    """Returns seconds a byte of a large micro-batch over those of small ones with as many bytes, of each pair."""
    small, large = (Size.of(mib, settings.leaves) for mib in settings.linear_mib)
    say(f"linear: {settings.pairs} pairs of {large.nbytes / MIB:g} MiB and {small.nbytes / MIB:g} MiB")
    small_count = max(1, large.nbytes // small.nbytes)
    pairs = _in_pairs(large, small, settings, other_count=small_count)
    return [(large_s / large.nbytes) / (small_s / (small_count * small.nbytes)) for large_s, small_s in pairs]


def _in_pairs(
    one: Size, other: Size, settings: IngestBenchSettings, *, other_count: int = 1
) -> list[tuple[float, float]]:
    """Stages two sizes in turn through one daemon, the other one so many times each; returns their seconds."""
    largest = max(one, other, key=lambda size: size.nbytes)
    with (
        _source(largest) as source,
        start_daemon(largest.nbytes + MIB) as daemon,
        stage_sender(source, settings) as sender,
    ):
        way = DaemonWay("forebay_tcp", sender, daemon)
        for size in (one, other):
            way.send(size)
        return [(way.send(one), sum(way.send(other) for _ in range(other_count))) for _ in range(settings.pairs)]


def daemon_memory(settings: IngestBenchSettings) -> dict[str, float]:
    """Returns the most private MiB of a fresh daemon, by the MiB of the micro-batches that were staged with it."""
    private: dict[str, float] = {}
    for mib in settings.memory_mib:
        say(f"memory: a daemon and {_STAGES_FOR_MEMORY} micro-batches of {mib:g} MiB")
        size = Size.of(mib, settings.leaves)
        with (
            _source(size) as source,
            start_daemon(size.nbytes) as daemon,
            stage_sender(source, settings) as sender,
        ):
            way = DaemonWay("forebay_tcp", sender, daemon)
            for _ in range(_STAGES_FOR_MEMORY):
                way.watched(size)
            private[f"{mib:g}"] = way.receiver_cost.peak_mib
    return private


def first_stages(settings: IngestBenchSettings) -> list[float]:
    """Returns a fresh daemon's first micro-batch over its steady ones, in seconds, for each of several daemons.

    The sender's process is the same for all, and has staged with another daemon before.
    """
    size = Size.of(settings.first_mib, settings.leaves)
    count, mib = _STAGES_OF_A_DAEMON, settings.first_mib
    say(f"first: {settings.daemons} daemons, each {count} micro-batches of {mib:g} MiB")
    with _source(size) as source, stage_sender(source, settings) as sender:
        ratios = [_first_over_steady(size, sender) for _ in range(1 + settings.daemons)]
    return ratios[1:]


def _first_over_steady(size: Size, sender: Child) -> float:
    with start_daemon(size.nbytes) as daemon:
        way = DaemonWay("forebay_tcp", sender, daemon)
        seconds = [way.send(size) for _ in range(_STAGES_OF_A_DAEMON)]
    return seconds[0] / statistics.median(seconds[_STEADY])


@contextlib.contextmanager
def _source(size: Size) -> Iterator[Region]:
    with Region(size.nbytes) as region:
        region.fill()
        yield region


def say(words: str) -> None:
    """Tells how far it is, on standard error."""
    sys.stderr.write(f"bench ingest: {words}\n")
    sys.stderr.flush()
