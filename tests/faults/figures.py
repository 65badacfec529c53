"""Tells how long it took until faults were over. Run as a script with the file that FAULT_FIGURES named."""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path


def table(lines: str) -> str:
    """Makes a table of median and maximum of what the tests wrote down, in seconds."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for line in lines.splitlines():
        noted = json.loads(line)
        seconds[noted["what"]].append(noted["seconds"])
    rows = ["| what | runs | median, s | longest, s |", "| --- | --- | --- | --- |"]
    for what, taken in sorted(seconds.items()):
        rows.append(f"| {what} | {len(taken)} | {statistics.median(taken):.2f} | {max(taken):.2f} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table(Path(sys.argv[1]).read_text()))
