"""The daemon of the benchmark of hand-overs: the real one, which also notes when its slots become READY.

Run as `python -m forebay.benchmarks.handoff_daemon SETTINGS`. It says a line when it is ready, serves until its
standard input ends, which is also when whoever started it is gone, and then says when it published what.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import msgspec

from forebay.daemon import Settings, serve, start_logging
from forebay.shm import SlotFile, SlotState
from forebay.wire import ForebayError, exit_code

from .handoff_child import tell


class Published(msgspec.Struct, frozen=True):
    """When slots became READY.

    Attributes:
        ready_at_ns: Monotonic nanosecond of each publication, in order.
    """

    ready_at_ns: list[int]


def note_publications() -> list[int]:
    """Has every slot of this process note when it becomes READY, right before its header says so.

    Returns:
        Monotonic nanoseconds; grows with each publication.
    """
    moments: list[int] = []
    write_state = SlotFile.write_state

    def noting(self: SlotFile, state: SlotState, **more: Any) -> None:
        if state is SlotState.READY:
            moments.append(time.monotonic_ns())
        write_state(self, state, **more)

    SlotFile.write_state = noting  # type: ignore[method-assign]
    return moments


def main() -> int:
    """Runs as a process of its own."""
    moments = note_publications()
    try:
        settings = Settings(**msgspec.json.decode(sys.argv[1]))
        start_logging(settings.log_level)
        serve(settings, ready_fd=os.dup(1), parent_fd=0)
    except ForebayError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return exit_code(error)
    tell(Published(moments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
