"""What a process costs, of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from forebay.benchmarks.process_cost import ProcessCost

# Each line is run, and answered when it was; what it names stays.
CHILD = "import sys\nkept = {}\nfor line in sys.stdin:\n    exec(line, kept)\n    print(flush=True)"
WORK = "sum(range(20_000_000))"
MIB = 1 << 20


class Child:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def do(self, line: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "\n"


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child()
    with child.process:
        child.do("pass")
        yield child
        child.process.kill()


def test_only_work_while_it_is_watched_counts(child: Child) -> None:
    cost = ProcessCost(child.process.pid)
    child.do(WORK)
    assert cost.cpu_s == 0
    with cost:
        child.do(WORK)
    first = cost.cpu_s
    assert first > 0
    child.do(WORK)
    assert cost.cpu_s == first
    with cost:
        child.do(WORK)
    assert cost.cpu_s > first


def test_the_work_of_another_process_does_not_count(child: Child) -> None:
    with ProcessCost(child.process.pid) as cost:
        sum(range(20_000_000))
    # The kernel counts in hundredths, and answering a line is work too.
    assert cost.cpu_s <= 2 / os.sysconf("SC_CLK_TCK")


def test_private_memory_counts_at_its_peak(child: Child) -> None:
    cost = ProcessCost(child.process.pid)
    with cost:
        child.do(f"held = bytearray(b'x') * {64 * MIB}")
    assert cost.peak_mib > cost.first_mib + 60
    peak = cost.peak_mib
    with cost:
        child.do("del held")
    assert cost.peak_mib == peak


def test_shared_memory_is_not_private(child: Child) -> None:
    child.do("import mmap, os; fd = os.open('/dev/shm', os.O_TMPFILE | os.O_RDWR)")
    child.do(f"os.posix_fallocate(fd, 0, {64 * MIB})")
    with ProcessCost(child.process.pid) as cost:
        child.do(f"held = mmap.mmap(fd, {64 * MIB}, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)")
    assert cost.peak_mib < cost.first_mib + 32


def test_a_process_that_is_gone_costs_nothing_more(child: Child) -> None:
    cost = ProcessCost(child.process.pid)
    with cost:
        child.process.kill()
        child.process.wait()
    assert cost.cpu_s == 0
    gone = ProcessCost(child.process.pid)
    assert gone.first_mib == gone.peak_mib == 0
