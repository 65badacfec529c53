"""What peers say cannot drive the terminal of whoever looks."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from forebay.cli.app import app
from forebay.cli.bench.shared import tell
from forebay.cli.inspector import Inspector
from forebay.wire import Peer, QueueStatus, SlotStatus, Status

HOSTILE = "a\x1b[31m\x9b2J\u202e\x7f\r\n\b[bold]:skull:\\[é\U0001f600"
PEER = Peer(name=HOSTILE, pid=1, host=HOSTILE)
STATUS = Status(
    software=HOSTILE,
    epoch=HOSTILE,
    peer=PEER,
    uptime_s=1.0,
    draining=False,
    pool=HOSTILE,
    waiting_offers=0,
    slots=(
        SlotStatus(
            index=0,
            generation=1,
            state=HOSTILE,
            slot_bytes=1,
            queue=HOSTILE,
            key=HOSTILE,
            payload_bytes=1,
            age_s=3.0,
            offered_s=7.0,
            holder=PEER,
        ),
    ),
    queues=(QueueStatus(name=HOSTILE, ready=(HOSTILE,), on_device=(HOSTILE,), trainer=PEER, trainer_since_s=1.0),),
    counters={HOSTILE: 1},
)


@pytest.fixture
def _told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inspector, "talk", lambda *_: STATUS)
    monkeypatch.setenv("COLUMNS", "2000")


def drives_nothing(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.usefixtures("_told")
def test_a_status_shows_what_peers_say_and_follows_none_of_it() -> None:
    shown = CliRunner().invoke(app, ["status"]).stdout
    assert drives_nothing(shown)
    assert "[bold]:skull:" in shown.replace("\n", "")
    assert "held s" in shown


@pytest.mark.usefixtures("_told")
def test_the_json_of_a_status_is_one_line_of_printable_ascii_with_all_that_was_said() -> None:
    shown = CliRunner().invoke(app, ["status", "--json"]).stdout
    assert shown.isascii()
    assert drives_nothing(shown)
    assert shown.count("\n") == 1
    assert msgspec.json.decode(shown, type=Status) == STATUS


def test_the_json_of_a_benchmark_is_so_too(capsys: pytest.CaptureFixture[str]) -> None:
    tell({"words": HOSTILE}, True, lambda _result, _console: None)
    shown = capsys.readouterr().out
    assert shown.isascii()
    assert drives_nothing(shown)
    assert json.loads(shown) == {"words": HOSTILE}


def test_an_error_shows_hostile_names_in_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["keygen", HOSTILE, "--folder", str(tmp_path)])
    assert drives_nothing(str(done.exception))
    assert "name of the key files" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_key_in_a_folder_with_a_hostile_name_is_told_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / HOSTILE
    folder.mkdir()
    done = CliRunner().invoke(app, ["keygen", "alice", "--folder", str(folder)])
    assert done.exit_code == 0
    assert drives_nothing(done.output)
