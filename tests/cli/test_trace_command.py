"""`forebay trace` as it is called: what it writes, draws and merges, and what it refuses."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from forebay.cli.app import app
from forebay.cli.inspector import Inspector
from forebay.orchestrator_client import Bar

from ..daemon.ledger_driver import Driver
from ..daemon.ledger_peers import Sender, Trainer
from .trace_rules import check_trace
from .traced import history_of, passes

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def _told(monkeypatch: pytest.MonkeyPatch, driver: Driver, sender: Sender, trainer: Trainer) -> None:
    passes(driver, sender, trainer, "a", "b")
    answer = driver.status(), *history_of(driver, 4)
    monkeypatch.setattr(Inspector, "talk", lambda *_: answer)


@pytest.mark.usefixtures("_told")
def test_the_trace_is_written_and_summed_up_on_standard_error(tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    done = CliRunner().invoke(app, ["trace", "--out", str(out), "--last", "1"])
    assert (done.exit_code, done.stdout) == (0, "")
    check_trace(json.loads(out.read_text()))
    assert done.stderr == (
        f"{out}: 1 micro-batch of the last 4.0 s, of 2 that are known;"
        " the daemon has forgotten the 4 moments before (remembered_events)\n"
    )


@pytest.mark.usefixtures("_told")
def test_a_dash_writes_to_standard_output_and_nothing_else_there() -> None:
    done = CliRunner().invoke(app, ["trace", "--out", "-"])
    assert done.stdout.count("\n") == 1
    check_trace(json.loads(done.stdout))


@pytest.mark.usefixtures("_told")
def test_a_picture_is_drawn_of_it(tmp_path: Path) -> None:
    png, bars = tmp_path / "t.png", tmp_path / "bars.json"
    bars.write_bytes(msgspec.json.encode([Bar("stage", "a", 1001.0, 1003.0)]))
    sizes = []
    for merge in ([], ["--merge", str(bars)]):
        done = CliRunner().invoke(app, ["trace", "--out", str(tmp_path / "t.json"), "--png", str(png), *merge])
        assert done.exit_code == 0, done.output
        assert png.read_bytes().startswith(PNG_SIGNATURE)
        sizes.append(int.from_bytes(png.read_bytes()[20:24]))
    assert sizes[0] < sizes[1], "one more lane makes a higher picture"


def test_a_picture_of_nothing_is_refused_and_the_trace_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: Driver
) -> None:
    answer = driver.status(), *history_of(driver)
    monkeypatch.setattr(Inspector, "talk", lambda *_: answer)
    out = tmp_path / "t.json"
    done = CliRunner().invoke(app, ["trace", "--out", str(out), "--png", str(tmp_path / "t.png")])
    assert "the daemon tells of no micro-batch" in str(done.exception)
    check_trace(json.loads(out.read_text()))


def test_without_matplotlib_a_picture_is_refused_before_anybody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = CliRunner().invoke(app, ["trace", "--png", str(tmp_path / "t.png")])
    assert "pip install 'forebay[plot]'" in str(done.exception)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        ("{]", "cannot be merged"),
        ('[{"lane": "x"}]', "bars like"),
        ('{"lane": "x", "key": "a", "began_at": 2.0, "ended_at": 1.0}\n', "end after they begin"),
    ],
)
def test_a_file_that_cannot_be_merged_is_named_before_anybody_is_asked(
    tmp_path: Path, content: str | None, words: str
) -> None:
    file = tmp_path / "bars.json"
    if content is not None:
        file.write_text(content)
    done = CliRunner().invoke(app, ["trace", "--merge", str(file), "--out", "-"])
    assert words in str(done.exception)
    assert str(file) in str(done.exception)


def test_bars_are_read_from_an_array_and_from_lines(tmp_path: Path) -> None:
    read_bars = importlib.import_module("forebay.cli.trace").read_bars
    bars = [Bar("stage", "a", 1.0, 2.0), Bar("device", "b", 2.0, 3.0)]
    array, lines = tmp_path / "a.json", tmp_path / "b.jsonl"
    array.write_bytes(msgspec.json.encode(bars))
    lines.write_bytes(b"\n".join(map(msgspec.json.encode, bars)))
    assert read_bars(array) == read_bars(lines) == bars


@pytest.mark.usefixtures("_told")
def test_a_trace_that_cannot_be_written_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["trace", "--out", str(tmp_path / "no" / "t.json")])
    assert "option --out" in str(done.exception)
    assert "No such file" in str(done.exception)


@pytest.mark.parametrize("arguments", [("--png", "a.jpg"), ("--last", "0"), ("--seconds", "-1")], ids=str)
def test_an_option_out_of_range_is_named_before_anybody_is_asked(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, ["trace", *arguments])
    assert done.exit_code != 0
    assert arguments[0] in f"{done.exception}{done.output}"
