"""Commands that look, against a real daemon: what they print, as text and JSON, and how they end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forebay import LocalDaemon, local_daemon
from forebay.cli.forget import NotForgottenError
from forebay.cli.stories import Case
from forebay.wire import ExitCode, exit_code

from .operated import END_S, HOSTILE, cli, stage, tell, told
from .test_inspector import HEAVY, TELL_MODULES, run

LOOKING = [("why", "k"), ("peek", "k"), ("queue", "train"), ("events",)]
ORDERS = [("pause",), ("resume",), ("drain",), ("reset", "train", "--yes"), ("forget", "k", "--yes")]


@pytest.mark.parametrize("command", LOOKING + ORDERS, ids=str)
def test_a_daemon_that_is_not_there_is_told_in_one_line(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = cli(*command, to=f"ipc://{tmp_path}/none.sock")
    assert (done.returncode, done.stdout) == (ExitCode.NO_ANSWER, "")
    assert done.stderr.count("\n") == 1
    assert "start one (forebay serve)" in done.stderr


@pytest.mark.parametrize("command", [*LOOKING, ("status",), ("forget", "k"), ("reset", "k")], ids=str)
def test_hostile_names_drive_no_terminal_and_no_line_is_too_long(
    daemon: LocalDaemon, command: tuple[str, ...]
) -> None:
    stage(daemon, HOSTILE)
    stage(daemon, HOSTILE, queue=HOSTILE)
    done = cli(*(HOSTILE if word == "k" else word for word in command), to=daemon, said="n\n")
    shown = done.stdout + done.stderr
    assert all(line.isprintable() for line in shown.split("\n"))
    assert "k\\x1b[31m" in shown
    assert command[0] in ("forget", "reset") or all(len(line) <= 80 for line in shown.split("\n"))


def test_a_hostile_name_in_json_is_ascii_and_whole(daemon: LocalDaemon) -> None:
    stage(daemon, HOSTILE)
    assert told("why", HOSTILE, to=daemon)["key"] == HOSTILE
    assert told("queue", "train", to=daemon)["micro_batches"][0]["key"] == HOSTILE
    assert HOSTILE[0] in told("peek", HOSTILE, to=daemon)["tree"]


@pytest.mark.parametrize("command", [("why", "k"), ("queue", "train"), ("events",), ("pause",)], ids=str)
def test_a_command_that_shows_no_values_loads_nothing_heavy(daemon: LocalDaemon, command: tuple[str, ...]) -> None:
    stage(daemon, "k")
    done = run("-c", TELL_MODULES, *command, "--endpoint", daemon.control_endpoint)
    assert done.returncode == 0, done.stderr
    assert not set(done.stderr.split()) & HEAVY


# Looking.


def test_events_are_told_with_their_times_one_line_each_for_programs(daemon: LocalDaemon) -> None:
    stage(daemon, "k", "l")
    lines = cli("events", "--json", "--key", "k", to=daemon).stdout.splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["event"] for event in events] == ["offered", "filling", "ready"]
    fields = {"at", "number", "at_s", "event", "queue", "key", "slot", "generation", "who", "words"}
    assert all(set(event) == fields for event in events)
    shown = cli("events", "--last", "1", to=daemon).stdout
    assert "ready" in shown
    assert "train l" in shown
    assert shown.count("\n") == 1


def test_who_follows_hears_what_happens_also_of_another_daemon_until_ctrl_c(shm_dir: Path) -> None:
    places = {f"{name}_endpoint": f"ipc://{shm_dir}/{name}.sock" for name in ("control", "data", "trainer")}
    settings: dict[str, Any] = {"pool": str(shm_dir / "pool"), "slots": 1, "slot_initial_bytes": 1 << 16} | places
    with local_daemon(**settings) as first:
        arguments = ["-m", "forebay.cli", "events", "--follow", "--json", "--endpoint", first.control_endpoint]
        with subprocess.Popen(
            [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as follower:
            assert follower.stdout is not None
            try:
                stage(first, "k")
                until(follower, "ready", "k")
                first.process.kill()
                first.process.wait()
                with local_daemon(**settings) as second:
                    until(follower, "restarted", "")
                    until(follower, "adopt", "k")
                    tell(second, lambda client: client.reset())
                    until(follower, "reset", "")
                    follower.send_signal(signal.SIGINT)
                    assert follower.wait(END_S) == ExitCode.INTERRUPTED
            finally:
                follower.kill()


def until(follower: subprocess.Popen[str], event: str, key: str) -> None:
    assert follower.stdout is not None
    for line in follower.stdout:
        found = json.loads(line)
        if (found["event"], found["key"]) == (event, key):
            return
    pytest.fail(f"no {event} of {key!r}: {follower.stderr and follower.stderr.read()}")


def test_a_queue_is_shown_in_its_order_with_what_is_known_of_each(daemon: LocalDaemon) -> None:
    stage(daemon, "a", "b", policy_version=3, expires_s=1000)
    stage(daemon, "other", queue="eval")
    found = told("queue", "train", to=daemon)
    assert (found["queue"], found["paused"]) == ("train", False)
    rows = [(row["key"], row["state"], row["policy_version"]) for row in found["micro_batches"]]
    assert rows == [("a", "READY", 3), ("b", "READY", 3)]
    assert found["micro_batches"][0]["payload_bytes"] == 6014
    assert 900 < found["micro_batches"][0]["stale_in_s"] < 1000
    shown = cli("queue", "train", to=daemon).stdout
    assert "no trainer, policy version 3" in shown
    assert "other" not in shown


def test_a_queue_that_is_not_there_is_unknown_and_those_that_are_are_named(daemon: LocalDaemon) -> None:
    stage(daemon, "a")
    done = cli("queue", "nope", to=daemon)
    assert done.returncode == ExitCode.UNKNOWN
    assert done.stderr == "forebay: no queue 'nope'; there is 'train'\n"


def test_where_there_is_nothing_it_is_said(daemon: LocalDaemon) -> None:
    assert cli("queues", to=daemon).stdout == "no queues\n"
    assert "\nno queues\n" in cli("status", to=daemon).stdout
    assert cli("events", "--key", "k", to=daemon).stdout == "nothing of that is remembered\n"
    assert cli("events", "--key", "k", "--json", to=daemon).stdout == ""
    assert cli("slots", "--queue", "train", to=daemon).returncode == ExitCode.UNKNOWN
    tell(daemon, lambda client: client.advance(1))
    assert cli("slots", "--queue", "train", to=daemon).stdout == "no slot holds anything of queue 'train'\n"
    assert told("slots", "--queue", "train", to=daemon) == {"slots": []}
    assert cli("queue", "train", to=daemon).stdout.endswith("\nno micro-batches\n")


@pytest.mark.parametrize(
    "command",
    [("pause", ""), ("queue", ""), ("why", ""), ("slots", "--queue", ""), ("forget", "k", "--queue", "")],
    ids=str,
)
def test_an_empty_name_is_refused_and_does_not_mean_all(daemon: LocalDaemon, command: tuple[str, ...]) -> None:
    done = cli(*command, to=daemon)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert "got an empty text" in done.stderr
    assert told("resume", "other", to=daemon) == {"draining": False, "all_paused": False, "paused": []}


def test_the_json_of_a_command_is_one_object_that_names_what_it_holds(daemon: LocalDaemon) -> None:
    stage(daemon, "k")
    status = told("status", to=daemon)
    for part in ("slots", "queues"):
        (name,) = found = told(part, to=daemon)
        assert name == part
        assert [set(one) for one in found[part]] == [set(one) for one in status[part]]


def test_a_peek_shows_tree_leaves_and_values(daemon: LocalDaemon) -> None:
    stage(daemon, "k")
    shown = cli("peek", "k", "--stats", "--values", "ids[1,:4]", to=daemon).stdout
    for words in ("READY", "int16[3, 1000]", "['mask']", "bfloat16", "2999", "[1000 1001 1002 1003]"):
        assert words in shown
    found = told("peek", "k", "--stats", "--values", "mask[:2]", to=daemon)
    assert [leaf["path"] for leaf in found["leaves"]] == ["['ids']", "['mask']"]
    numbers = {"dtype": "bfloat16", "shape": [7], "nbytes": 14, "min": 1.0, "max": 1.0, "mean": 1.0, "nan": 0}
    assert numbers.items() <= found["leaves"][1].items()
    assert found["values"] == {"path": "['mask']", "shape": [2], "values": [1.0, 1.0]}


def test_a_peek_at_what_is_not_there_or_not_in_a_slot_says_so(daemon: LocalDaemon) -> None:
    done = cli("peek", "k", to=daemon)
    assert done.returncode == ExitCode.UNKNOWN
    unknown = "queue 'train' knows no micro-batch 'k'"
    assert done.stderr == f"forebay: {unknown}: it was never offered there, or is forgotten\n"
    stage(daemon, "k")
    assert cli("peek", "k", "--values", "nope", to=daemon).returncode == ExitCode.USAGE
    tell(daemon, lambda client: client.reset())
    assert "dropped" in cli("peek", "k", to=daemon).stdout
    done = cli("peek", "k", "--stats", to=daemon)
    assert done.returncode == ExitCode.FAILED
    assert "in no slot" in done.stderr


def test_a_story_is_told_and_an_unknown_key_has_a_code_of_its_own(daemon: LocalDaemon) -> None:
    stage(daemon, "k")
    found = told("why", "k", to=daemon)
    assert set(found) == {"queue", "key", "case", "words", "remedy", "peeked", "moments"}
    assert found["case"] == Case.NO_TRAINER
    assert found["peeked"]["state"] == "ready"
    assert "manifest" not in found["peeked"]
    assert [moment["event"] for moment in found["moments"]] == ["offered", "filling", "ready"]
    assert told("why", "k", "--queue", "eval", to=daemon, code=ExitCode.UNKNOWN)["case"] == Case.OTHER_QUEUE
    assert told("why", "x", to=daemon, code=ExitCode.UNKNOWN)["peeked"] is None


def test_a_status_ends_with_what_is_wrong(daemon: LocalDaemon) -> None:
    assert "- " not in cli("status", to=daemon).stdout
    stage(daemon, "k")
    shown = cli("status", to=daemon).stdout
    assert "- queue 'train' has 1 micro-batch READY and no trainer" in shown


def test_a_status_leaves_out_commands_that_only_asked_and_says_how_many(daemon: LocalDaemon) -> None:
    stage(daemon, "k")
    cli("queues", to=daemon)
    shown = cli("status", to=daemon).stdout
    assert "forebay queues pid" not in shown
    assert "forebay status pid" not in shown
    assert "orchestrator pid" in shown
    assert "the last to be heard first; 2 commands such as this one left out" in shown
    assert any(one["peer"]["name"] == "forebay queues" for one in told("status", to=daemon)["peers"])


def test_a_micro_batch_that_is_kept_is_said_to_be_kept_and_why() -> None:
    error = NotForgottenError("k", "in_use", "the trainer of queue 'train' has 'k'")
    assert str(error) == "'k' was not forgotten (in_use): the trainer of queue 'train' has 'k'"
    assert exit_code(error) == ExitCode.REFUSED
