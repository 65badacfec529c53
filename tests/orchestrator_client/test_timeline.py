"""A run as a picture, by what matplotlib was told to draw."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot

from forebay.orchestrator_client.timeline import Bar, draw, lanes_of
from forebay.wire import SettingError, UsageError

BARS = [
    Bar("device", "a", 103.0, 106.0),
    Bar("transfer", "a", 100.0, 102.0),
    Bar("sync", "a", 106.0, 107.0),
    Bar("rollout", "b", 101.0, 101.5),
]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The figures that were drawn; they stay open until the test ends."""
    kept: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(pyplot, "close", kept.append)
        yield kept
    for figure in kept:
        pyplot.close(figure)


def rows(axis: Any) -> list[str]:
    return [label.get_text() for label in axis.get_yticklabels()]


def labels(axis: Any) -> list[str]:
    return sorted(text.get_text() for text in axis.texts)


def test_known_lanes_come_in_the_order_of_a_micro_batchs_way_and_others_as_they_appear() -> None:
    assert lanes_of([("run", BARS)]) == ("transfer", "device", "rollout", "sync")


def test_lanes_come_in_the_order_that_was_asked_for(figures: list[Any], tmp_path: Path) -> None:
    asked = ("sync", "device", "empty", "transfer", "rollout")
    draw([("run", BARS)], tmp_path / "timeline.png", lanes=asked)
    [figure] = figures
    assert rows(figure.axes[0]) == list(asked)
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_all_runs_have_the_lanes_of_all(figures: list[Any], tmp_path: Path) -> None:
    draw([("one", BARS[:1]), ("two", BARS[1:2])], tmp_path / "timeline.png")
    [figure] = figures
    assert [rows(axis) for axis in figure.axes] == [["transfer", "device"]] * 2
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["one", "two"]


@pytest.mark.parametrize(("longest_s", "unit", "right"), [(10.0, "ms", 10_000.0), (10.5, "s", 10.5)])
def test_a_run_of_more_than_ten_seconds_is_told_in_seconds(
    longest_s: float, unit: str, right: float, figures: list[Any], tmp_path: Path
) -> None:
    draw([("run", [Bar("device", "a", 50.0, 50.0 + longest_s)])], tmp_path / "timeline.png")
    axis = figures[0].axes[0]
    assert axis.get_xlabel() == unit
    assert axis.patches[0].get_width() == pytest.approx(right)


def test_a_key_is_written_only_where_it_can_be_read(figures: list[Any], tmp_path: Path) -> None:
    bars = [
        Bar("device", "wide", 0.0, 100.0),
        Bar("device", "n", 100.0, 101.0),
        Bar("transfer", "b", 0.0, 3.0),
        Bar("transfer", "a key of many letters", 3.0, 6.0),
        Bar("transfer", "instant", 7.0, 7.0),
    ]
    draw([("run", bars)], tmp_path / "timeline.png")
    assert labels(figures[0].axes[0]) == ["b", "wide"]


def test_each_run_has_its_own_marks(figures: list[Any], tmp_path: Path) -> None:
    runs = [("one", BARS), ("two", BARS)]
    draw(runs, tmp_path / "timeline.png", marks=[(103.0, 106.0), ()])
    marked, plain = figures[0].axes
    assert [line.get_xdata()[0] for line in marked.lines] == pytest.approx([3000.0, 6000.0])
    assert {line.get_linestyle() for line in marked.lines} == {"--"}
    assert len(plain.lines) == 0


def test_a_run_in_which_nothing_takes_time_can_be_drawn(figures: list[Any], tmp_path: Path) -> None:
    draw([("run", [Bar("device", "a", 5.0, 5.0)])], tmp_path / "timeline.png")
    assert labels(figures[0].axes[0]) == []


def test_a_picture_that_cannot_be_is_an_error_and_nothing_is_written(tmp_path: Path) -> None:
    file = tmp_path / "timeline.png"
    with pytest.raises(UsageError, match="got sync; limit transfer, device, rollout"):
        draw([("run", BARS)], file, lanes=("transfer", "device", "rollout"))
    with pytest.raises(UsageError, match=r"needs bars; got .*empty"):
        draw([("run", BARS), ("empty", [])], file)
    with pytest.raises(UsageError, match="needs bars"):
        draw([], file)
    with pytest.raises(UsageError, match="marks of its own; got 2; limit 1 runs"):
        draw([("run", BARS)], file, marks=[(), ()])
    assert not file.exists()


def test_a_file_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "missing" / "timeline.png"
    with pytest.raises(SettingError, match=str(file)):
        draw([("title", BARS)], file)


def test_whoever_draws_nothing_imports_no_matplotlib() -> None:
    code = "import sys, forebay.orchestrator_client.timeline; sys.exit('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], timeout=120, check=False)
    assert done.returncode == 0
