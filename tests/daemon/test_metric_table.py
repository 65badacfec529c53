"""The table of metrics is whole: no counter that the code can make is left out, and every name keeps the rules."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import forebay
from forebay.daemon.end_reasons import DROPPED_BY, LOST_BY, EndReason
from forebay.daemon.figures import distributions
from forebay.daemon.measures import Measures
from forebay.daemon.metric_table import COUNTERS, MEASURED, METRICS, SUMS, Kind, Metric
from forebay.daemon.staleness import STALE_BY
from forebay.sockets import HANDSHAKE_FAILURES
from forebay.sockets import failed_handshakes as handshakes_module
from forebay.wire import ChunkFault, MicroBatchState, RefusalCode

_SOURCE = Path(forebay.__file__).parent
_BY_NAME = {metric.name: metric for metric in METRICS}

_ENDS = [state.value for state in (MicroBatchState.CONSUMED, MicroBatchState.DROPPED, MicroBatchState.LOST)]
_TEMPLATES: dict[str, list[str]] = {
    "refused_{code}": [f"refused_{code}" for code in RefusalCode],
    "finished_{batch.state}": [f"finished_{state}" for state in _ENDS],
    "{batch.state}_{why}": [
        *(f"dropped_{why}" for why in DROPPED_BY),
        *(f"lost_{why}" for why in LOST_BY),
    ],
    "offered_stale_{count}": [f"offered_stale_{why}" for why in STALE_BY],
    "dropped_stale_{count}": [f"dropped_stale_{why}" for why in STALE_BY],
    "counter_of(reason)": [handshakes_module.counter_of(why) for why in HANDSHAKE_FAILURES],
    "counter_of(NOT_AUTHORISED)": [handshakes_module.counter_of(handshakes_module.NOT_AUTHORISED)],
    # Where a name is passed on; those who pass it are found by themselves.
    "counter": [],
    "reason": [],
    "fault": [fault.value for fault in ChunkFault],
}
"""How the code names counters -> the names that come of it."""


def _names_in(path: Path) -> Iterator[str]:
    """Yields the names under which a file counts, as written: constants, or templates."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("counters"):
            yield from _written(node.slice)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("faults.count", "self._count", "_mark")
        ):
            yield from itertools.chain.from_iterable(map(_written, node.args))


def _written(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield ast.unparse(node).removeprefix("f").strip("'\"")
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "counter_of":
        yield ast.unparse(node)
    elif isinstance(node, ast.Name) and node.id in ("counter", "reason", "fault"):
        yield node.id


def _files() -> list[Path]:
    folders = [_SOURCE / name for name in ("daemon", "sockets", "wire")]
    return [path for folder in folders for path in folder.resolve().glob("*.py")]


def test_every_counter_that_the_code_can_make_is_told_by_a_metric() -> None:
    written = {name for path in _files() for name in _names_in(path)}
    assert {"published", "late_releases", "refused_{code}", "{batch.state}_{why}"} <= written, "the search works"
    names = [_TEMPLATES.get(name, [name]) for name in written]
    assert set(itertools.chain.from_iterable(names)) == COUNTERS.keys() | SUMS.keys()
    assert not COUNTERS.keys() & SUMS.keys()


def test_every_reason_to_be_stale_is_known() -> None:
    source = (_SOURCE / "daemon" / "staleness.py").read_text()
    why = source[source.index("def why") : source.index("def is_fresh")]
    assert set(re.findall(r'return "(\w+)", ', why)) == set(STALE_BY)


def test_every_reason_of_a_failed_handshake_is_known() -> None:
    reasons = {*handshakes_module._PROTOCOL_ERRORS.values(), "protocol", handshakes_module.NOT_AUTHORISED}
    assert reasons | {handshakes_module._HUNG_UP} == set(HANDSHAKE_FAILURES)


def test_every_end_is_a_drop_or_a_loss() -> None:
    assert {*DROPPED_BY, *LOST_BY} == set(EndReason)
    assert len(DROPPED_BY) + len(LOST_BY) == len(EndReason)


def test_every_counter_and_measure_has_a_series_of_its_own_in_the_table() -> None:
    series = list(COUNTERS.values())
    assert len(set(series)) == len(series)
    for name, labels in series:
        assert _BY_NAME[name].kind is Kind.COUNTER
        assert len(labels) == len(_BY_NAME[name].labels)
    assert set(MEASURED) == set(distributions(Measures()))
    for name in MEASURED.values():
        assert (_BY_NAME[name].kind, _BY_NAME[name].labels) == (Kind.HISTOGRAM, ())
    assert set(SUMS.values()) <= _BY_NAME.keys()


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_keep_prometheus_rules(metric: Metric) -> None:
    assert re.fullmatch(r"forebay(_[a-z]+)+", metric.name)
    assert metric.name.endswith("_total") is (metric.kind is Kind.COUNTER)
    if metric.kind is Kind.HISTOGRAM:
        assert metric.name.endswith(("_seconds", "_bytes"))
    assert not re.search(r"_(ms|milliseconds|kib|mib|gb|count|sum|bucket)\b", metric.name)
    assert not {"le", "job", "instance"} & set(metric.labels)
    assert metric.meaning
    assert "|" not in metric.meaning, "it goes into a table"


def test_no_name_is_there_twice() -> None:
    assert len(_BY_NAME) == len(METRICS)
