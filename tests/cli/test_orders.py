"""An operator's orders by the command line, against a real daemon."""

from __future__ import annotations

import json
import signal

import pytest

from forebay import LocalDaemon
from forebay.cli.drain import _Teller, held_up, left_words
from forebay.cli.stories import Case, Fault
from forebay.wire import ExitCode

from .operated import END_S, cli, stage, tell, told, waiting_drain
from .seen_stories import queue, slot, status


def test_pause_resume_and_drain_say_what_flows_now(daemon: LocalDaemon) -> None:
    assert told("pause", "train", to=daemon) == {"draining": False, "all_paused": False, "paused": ["train"]}
    assert "lends nothing of 'train'" in cli("pause", "train", to=daemon).stdout
    assert told("pause", to=daemon)["all_paused"]
    assert told("drain", to=daemon)["draining"]
    assert told("resume", to=daemon) == {"draining": False, "all_paused": False, "paused": []}


def test_a_pause_of_a_queue_that_nobody_knows_is_done_and_said(daemon: LocalDaemon) -> None:
    done = cli("pause", "nosuch", to=daemon)
    assert done.returncode == 0
    assert "lends nothing of 'nosuch'" in done.stdout
    words = "no queue 'nosuch' is known yet; it will be held from its first micro-batch on"
    assert done.stderr == f"forebay: {words}\n"
    stage(daemon, "k")
    assert cli("pause", "train", to=daemon).stderr == ""
    assert cli("pause", to=daemon).stderr == ""


def test_a_queue_that_is_resumed_while_all_are_paused_is_said_to_be_held(daemon: LocalDaemon) -> None:
    cli("pause", to=daemon)
    done = cli("resume", "train", to=daemon)
    assert done.returncode == ExitCode.FAILED
    assert done.stderr == "forebay: 'train' is still held: all queues are paused; forebay resume undoes that\n"
    assert told("status", to=daemon)["paused"]
    assert cli("resume", to=daemon).returncode == 0
    assert cli("resume", "train", to=daemon).returncode == 0


def test_a_paused_and_drained_daemon_says_why_nothing_moves(daemon: LocalDaemon) -> None:
    stage(daemon, "k")
    cli("pause", "train", to=daemon)
    assert told("why", "k", to=daemon)["case"] == Case.PAUSED
    cli("drain", to=daemon)
    stage(daemon, "late")
    found = told("why", "late", to=daemon)
    assert found["case"] == Case.REFUSED
    assert "(draining)" in found["words"]
    assert "forebay resume" in found["remedy"]


def test_a_drain_waits_until_nothing_is_left(daemon: LocalDaemon) -> None:
    stage(daemon, "k")
    done = cli("drain", "--wait", "--wait-s", "0.2", to=daemon)
    assert done.returncode == ExitCode.FAILED
    assert "left: 1 READY" in done.stderr
    assert "- queue 'train' has 1 micro-batch READY and no trainer" in done.stderr.splitlines()[1]
    assert done.stderr.splitlines()[-1].endswith("the daemon stays drained: forebay resume undoes that")
    with waiting_drain(daemon, "--json") as waits:
        tell(daemon, lambda client: client.reset())
        out, _ = waits.communicate(timeout=END_S)
    assert waits.returncode == 0
    assert json.loads(out)["left"] == 0


def test_a_drain_that_is_interrupted_says_that_it_stays(daemon: LocalDaemon) -> None:
    stage(daemon, "k")
    with waiting_drain(daemon) as waits:
        waits.send_signal(signal.SIGINT)
        out, said = waits.communicate(timeout=END_S)
    assert (waits.returncode, out) == (ExitCode.INTERRUPTED, "")
    assert said.endswith("forebay: the daemon stays drained: forebay resume undoes that\n")
    assert told("status", to=daemon)["draining"]


def test_a_drain_is_held_up_by_a_pause_of_all() -> None:
    paused = status(slot(0, "READY", "k"), draining=True, paused=True, queues=(queue(ready=("k",)),))
    assert [one.fault for one in held_up(paused)] == [Fault.PAUSED]


def test_what_holds_a_drain_up_is_said_when_it_changes_and_only_of_queues_that_hold_something(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ready = slot(0, "READY", "k", age_s=41.0)
    waits = queue(name="eval", asks_s=9.0, paused=True)
    still = status(ready, draining=True, queues=(queue(ready=("k",)), waits))
    gone = status(ready, draining=True, queues=(queue(ready=("k",), trainer=None), waits))
    teller = _Teller()
    for seen in (still, still, gone, gone, still):
        teller.tell(left_words(seen), held_up(seen))
    told_lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("  ")]
    assert told_lines[0] == "left: 1 READY"
    assert ["no trainer" in line for line in told_lines[1:]] == [False, True, False]
    assert not any("eval" in line or "drains" in line for line in told_lines)


def test_a_time_to_wait_without_a_wait_is_refused_and_nothing_is_drained(daemon: LocalDaemon) -> None:
    done = cli("drain", "--wait-s", "1", to=daemon)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert "--wait" in done.stderr
    assert not told("status", to=daemon)["draining"]


@pytest.mark.parametrize(("said", "code"), [("n\n", ExitCode.FAILED), ("", ExitCode.USAGE)])
@pytest.mark.parametrize("command", [("reset", "train"), ("forget", "k")], ids=str)
def test_nothing_is_dropped_that_nobody_agreed_to(
    daemon: LocalDaemon, command: tuple[str, ...], said: str, code: int
) -> None:
    stage(daemon, "k")
    done = cli(*command, to=daemon, said=said)
    assert (done.returncode, done.stdout) == (code, "")
    assert "nothing was changed" in done.stderr
    assert told("why", "k", to=daemon)["case"] == Case.NO_TRAINER


def test_a_reset_says_what_it_would_drop_and_what_it_dropped(daemon: LocalDaemon) -> None:
    stage(daemon, "k", "l")
    done = cli("reset", "train", to=daemon, said="y\n")
    assert "2 READY, 0 filling and 0 waiting" in done.stderr
    assert done.stdout == "dropped 2 micro-batches of queue 'train'\n"
    events = [json.loads(line) for line in cli("events", "--json", to=daemon).stdout.splitlines()]
    assert any(event["event"] == "reset" and event["who"].startswith("forebay reset pid") for event in events)


def test_what_is_forgotten_can_be_staged_again(daemon: LocalDaemon) -> None:
    stage(daemon, "k")
    assert told("forget", "k", "--yes", to=daemon) == {"queue": "train", "key": "k", "was": "ready"}
    assert told("why", "k", to=daemon)["case"] == Case.FORGOTTEN
    done = cli("forget", "k", "--yes", to=daemon)
    assert done.returncode == ExitCode.UNKNOWN
    assert done.stderr == "forebay: nothing to forget: queue 'train' knows no micro-batch 'k'\n"
    stage(daemon, "k")
    assert told("why", "k", to=daemon)["case"] == Case.NO_TRAINER
