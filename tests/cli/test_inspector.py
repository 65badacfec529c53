"""Commands ask the daemon in one way: with little loaded, with one line for each error, and with an exit code."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq

from forebay import LocalDaemon, StagingClient, local_daemon
from forebay.cli import inspector as inspecting
from forebay.cli.app import COMMANDS
from forebay.cli.inspector import Inspector
from forebay.wire import BrokenError, ExitCode, QueueStatus, Reset, SlotStatus, Status, WasReset

ASKING = ("status", "slots", "queues")
HEAVY = {
    "numpy",
    "numcodecs",
    "ml_dtypes",
    "xxhash",
    "jax",
    "rich",
    "pydantic",
    "zmq.auth",
    "forebay.daemon.server",
}
TELL_MODULES = """
import sys
from forebay.cli import main
code = main()
sys.stderr.write(" ".join(sys.modules))
sys.exit(code)
"""
COMPLETE = """
import sys
sys.argv[:] = ["forebay"]
from forebay.cli import main
try:
    code = main()
finally:
    sys.stderr.write(" ".join(sys.modules))
sys.exit(code)
"""
END_S = 60.0


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=END_S,
        check=False,
        env=os.environ | {"COLUMNS": "80"} | variables,
    )


def cli(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run("-m", "forebay.cli", *arguments, **variables)


@pytest.fixture(scope="module")
def daemon() -> Iterator[LocalDaemon]:
    with local_daemon(slot_initial_bytes=1 << 16) as started:
        asyncio.run(stage(started.control_endpoint))
        yield started


async def stage(endpoint: str) -> None:
    async with StagingClient(endpoint) as client:
        await client.stage({"a": np.arange(100_000)}, key="key-1", queue="train")


@pytest.mark.parametrize("command", ASKING)
def test_a_command_that_asks_loads_nothing_heavy(daemon: LocalDaemon, command: str) -> None:
    done = run("-c", TELL_MODULES, command, "--endpoint", daemon.control_endpoint)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stderr.split())
    assert {"zmq", "typer"} <= loaded
    assert not loaded & HEAVY


def test_the_version_is_told_without_sockets() -> None:
    loaded = set(run("-c", TELL_MODULES, "version").stderr.split())
    assert not loaded & (HEAVY | {"zmq", "asyncio"})


@pytest.mark.parametrize("command", ASKING)
def test_what_is_told_fits_80_columns(daemon: LocalDaemon, command: str) -> None:
    done = cli(command, "--endpoint", daemon.control_endpoint)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert "train" in done.stdout


def test_a_status_tells_who_the_daemon_is_and_what_it_allows(daemon: LocalDaemon) -> None:
    words = cli("status", "--endpoint", daemon.control_endpoint).stdout
    for told in ("serving", "4 slots", "arrays a micro-batch", "0 offers", "key-1", "READY", "orchestrator"):
        assert told in words, told


def test_json_is_what_the_daemon_said(daemon: LocalDaemon) -> None:
    def told(command: str, *options: str) -> str:
        return cli(command, "--json", "--endpoint", daemon.control_endpoint, *options).stdout

    status = msgspec.json.decode(told("status"), type=Status)
    assert [queue.name for queue in status.queues] == ["train"]
    slots = msgspec.json.decode(told("slots"), type=dict[str, list[SlotStatus]])["slots"]
    assert len(slots) == 4
    assert (
        msgspec.json.decode(told("slots", "--queue", "train"), type=dict[str, list[SlotStatus]])["slots"][0].key
        == "key-1"
    )
    assert msgspec.json.decode(told("queues"), type=dict[str, list[QueueStatus]])["queues"][0].ready == ("key-1",)


@pytest.mark.parametrize("more", [(), ("--timeout-s", "0.2")], ids=str)
def test_where_nobody_listens_it_is_said_in_one_line_with_a_code_of_its_own(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    done = cli("status", "--endpoint", f"ipc://{tmp_path}/c", *more)
    assert (done.returncode, done.stdout) == (ExitCode.NO_ANSWER, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("forebay: no daemon answer")
    assert f"there is no {tmp_path}/c here" in done.stderr
    assert "forebay serve" in done.stderr


def test_a_wrong_address_and_an_unknown_option_are_wrong_use() -> None:
    done = cli("status", "--endpoint", "nowhere")
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert "setting control_endpoint; got nowhere" in done.stderr
    assert cli("status", "--nothing").returncode == ExitCode.USAGE


def test_an_interrupted_command_says_so_by_its_code(tmp_path: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as silent:
        silent.bind(f"ipc://{tmp_path}/c")
        process = subprocess.Popen(
            [sys.executable, "-m", "forebay.cli", "status", "--endpoint", f"ipc://{tmp_path}/c"],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert silent.poll(int(END_S * 1000)), "the command never said hello"
            process.send_signal(signal.SIGINT)
            _, words = process.communicate(timeout=END_S)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == ExitCode.INTERRUPTED
    assert "Traceback" not in words


@pytest.fixture
def _elsewhere(daemon: LocalDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("FOREBAY_CONTROL_ENDPOINT", "FOREBAY_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(inspecting, "others_here", lambda _: [daemon.control_endpoint])


@pytest.mark.usefixtures("_elsewhere")
def test_who_only_looks_is_shown_the_one_other_daemon_of_this_host_and_told_so(
    daemon: LocalDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Inspector("status").status().pool == str(daemon.pool)
    assert f"this is the daemon at {daemon.control_endpoint}\n" in capsys.readouterr().err


@pytest.mark.usefixtures("_elsewhere")
def test_an_order_is_never_given_to_another_daemon_which_is_named_instead(daemon: LocalDaemon) -> None:
    orders = Inspector("reset", only_looks=False)
    with pytest.raises(BrokenError, match=f"ask one with --endpoint {daemon.control_endpoint}; or start one"):
        orders.ask(Reset(queue="train"), WasReset, "the reset")
    found = Inspector("status", daemon.control_endpoint).status()
    assert found.queues[0].ready == ("key-1",)


@pytest.mark.usefixtures("_elsewhere")
def test_of_several_daemons_none_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspecting, "others_here", lambda _: ["ipc:///a", "ipc:///b"])
    with pytest.raises(BrokenError, match="--endpoint ipc:///a or --endpoint ipc:///b"):
        Inspector("status").status()


@pytest.mark.usefixtures("_elsewhere")
def test_an_endpoint_that_is_named_is_the_only_one_that_is_asked(tmp_path: Path) -> None:
    with pytest.raises(BrokenError, match="no daemon answers") as raised:
        Inspector("status", f"ipc://{tmp_path}/c").status()
    assert "--endpoint" not in str(raised.value)


def complete(words: str, number: int) -> subprocess.CompletedProcess[str]:
    variables = {"_FOREBAY_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(number)}
    return run("-c", COMPLETE, **variables)


def test_names_of_commands_are_completed_without_loading_the_commands() -> None:
    done = complete("forebay ", 1)
    assert done.stdout.split() == list(COMMANDS)
    assert complete("forebay s", 1).stdout.split() == ["serve", "status", "slots"]
    assert not {f"forebay.cli.{name}" for name in COMMANDS} & set(done.stderr.split())


def test_options_are_completed() -> None:
    assert complete("forebay slots --end", 2).stdout.split() == ["--endpoint"]
    assert complete("forebay --inst", 1).stdout.split() == ["--install-completion"]


def test_names_of_queues_are_completed_from_the_daemon(daemon: LocalDaemon) -> None:
    def queues(endpoint: str, begun: str) -> list[str]:
        return complete(f"forebay slots --endpoint {endpoint} --queue {begun}", 5).stdout.split()

    assert queues(daemon.control_endpoint, "t") == ["train"]
    assert queues(daemon.control_endpoint, "x") == []
    assert queues("ipc:///dev/null/none", "t") == []
