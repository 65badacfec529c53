"""Daemons with keys, and clients with right, wrong and no keys; with real processes and sockets."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay import Refusal, Staged, StagingClient
from forebay.wire import ExitCode, HostError, RefusalCode, RefusedError, SettingError, WaitTimeoutError

from ..sockets.key_files import KeyFiles
from .keyed_talk import TCP, some_keys, stage, status_of, talk, tree
from .processes import EVENT_S, StartDaemon, see

SHORT_S = 2.0
"""Seconds after which a client gives up that can never be let in."""


@pytest.fixture
def files(tmp_path: Path) -> KeyFiles:
    return some_keys(tmp_path)


# --- who gets in ---


@pytest.mark.parametrize("protection", ["encrypted", "authenticated"])
def test_a_known_client_stages_by_either_kind_of_data_endpoint(
    start_daemon: StartDaemon, files: KeyFiles, protection: str
) -> None:
    daemon = start_daemon(**TCP, **files.server(data_protection=protection))

    async def run(client: StagingClient) -> None:
        assert client._welcome.data_protection == protection
        assert isinstance(await client.stage(tree(), key="large"), Staged)
        assert isinstance(await client.stage(tree(count=10), key="small"), Staged)

    talk(daemon, run, **files.client("alice"))
    assert status_of(daemon, files).queues[0].ready == ("large", "small")


def test_an_unknown_client_is_told_at_once_that_its_key_is_not_known(
    start_daemon: StartDaemon, files: KeyFiles
) -> None:
    daemon = start_daemon(**TCP, **files.server())
    with pytest.raises(
        RefusedError, match="does not know this key; have the public key of client_key_file"
    ) as got:
        talk(daemon, stage("k"), **files.client("eve"))
    assert got.value.code == RefusalCode.NOT_ALLOWED
    assert status_of(daemon, files).queues == ()


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        (lambda files: files.client("alice", server="bob"), "it has no keys, or not the one in server_key_file"),
        (lambda _: {}, "if it has keys, set client_key_file and server_key_file"),
    ],
    ids=["another server's key", "no keys"],
)
def test_a_client_that_is_turned_away_hears_within_its_timeout_what_to_check(
    start_daemon: StartDaemon, files: KeyFiles, keys: Callable[[KeyFiles], dict[str, Any]], hint: str
) -> None:
    daemon = start_daemon(**TCP, **files.server())
    with pytest.raises(WaitTimeoutError) as caught:
        talk(daemon, stage("k"), **keys(files), timeout_s=SHORT_S)
    assert f"no daemon answered at control_endpoint {daemon.control_endpoint} within 2 s" in str(caught.value)
    assert hint in str(caught.value)
    assert "start one (forebay serve)" not in str(caught.value), "there is one"
    assert status_of(daemon, files).queues == ()


def test_a_client_with_keys_at_a_daemon_without_hears_within_its_timeout_what_to_check(
    start_daemon: StartDaemon, files: KeyFiles
) -> None:
    daemon = start_daemon(**TCP)
    with pytest.raises(WaitTimeoutError, match="has no keys"):
        talk(daemon, stage("k"), **files.client("alice"), timeout_s=SHORT_S)
    assert isinstance(talk(daemon, stage("k")), Staged), "it lets in who has none"


def test_a_client_with_keys_uses_none_where_the_file_system_guards(
    start_daemon: StartDaemon, files: KeyFiles
) -> None:
    daemon = start_daemon(**files.server())
    assert isinstance(talk(daemon, stage("k"), **files.client("eve")), Staged)


def test_keys_come_from_the_environment_as_well(
    start_daemon: StartDaemon, files: KeyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(**TCP, **files.server())
    for name, value in files.client("alice").items():
        monkeypatch.setenv(f"FOREBAY_{name.upper()}", value)
    assert isinstance(talk(daemon, stage("k")), Staged)


def test_the_status_command_takes_keys(start_daemon: StartDaemon, files: KeyFiles) -> None:
    daemon = start_daemon(**TCP, **files.server())

    def status(name: str) -> subprocess.CompletedProcess[str]:
        flags = [f"--{flag.replace('_', '-')}={value}" for flag, value in files.client(name).items()]
        return subprocess.run(
            [
                sys.executable,
                "-m",
                "forebay.cli",
                "status",
                "--json",
                "--endpoint",
                daemon.control_endpoint,
                *flags,
            ],
            capture_output=True,
            text=True,
            timeout=EVENT_S,
            check=False,
        )

    done = status("inspector")
    assert done.returncode == 0, done.stderr
    assert '"epoch"' in done.stdout
    done = status("alice")
    assert (done.returncode, done.stdout) == (ExitCode.REFUSED, "")
    assert "client 'alice' lacks the right 'inspect'" in done.stderr


# --- rights ---


def test_who_stages_in_one_queue_sees_and_moves_nothing_of_others(
    start_daemon: StartDaemon, files: KeyFiles
) -> None:
    daemon = start_daemon(**TCP, **files.server(), slots=1)
    assert isinstance(talk(daemon, stage("secret-key", "secret-queue"), **files.client("alice")), Staged)

    async def run(client: StagingClient) -> list[str]:
        heard: list[str] = []
        for key, queue in (("mine", "bobs"), ("secret-key", "secret-queue"), ("no-key", "no-queue")):
            result = await client.stage(tree(), key=key, queue=queue, wait_s=0)
            assert isinstance(result, Refusal)
            heard.append(f"{result.code}: {result.words}")
        for queue in ("secret-queue", "no-queue"):
            with pytest.raises(RefusedError) as caught:
                await client.wait("secret-key", queue=queue)
            heard.append(caught.value.words)
            with pytest.raises(RefusedError) as caught:
                await client.reset(queue=queue)
            heard.append(caught.value.words)
        with pytest.raises(RefusedError) as caught:
            await client.status()
        return [*heard, caught.value.words]

    heard = talk(daemon, run, **files.client("bob"))
    assert re.fullmatch(r"no_slot: no slot became free for 'mine' within [\d.]+ s: slot 0 READY; [^']+", heard[0])
    assert heard[1] == "not_allowed: client 'bob' lacks the right 'stage' in queue 'secret-queue'"
    assert heard[1].replace("secret-queue", "no-queue") == heard[2]
    assert all("lacks the right" in words for words in heard[1:])
    [queue] = [queue for queue in status_of(daemon, files).queues if queue.ready]
    assert (queue.name, queue.ready) == ("secret-queue", ("secret-key",))


def test_a_client_that_is_struck_off_is_refused_from_its_next_word_on(
    start_daemon: StartDaemon, files: KeyFiles
) -> None:
    daemon = start_daemon(**TCP, **files.server())

    async def run(client: StagingClient) -> Any:
        assert isinstance(await client.stage(tree(), key="before"), Staged)
        files.authorise(files.entry("inspector", "inspect"))
        return await client.stage(tree(), key="after", wait_s=0)

    refusal = talk(daemon, run, **files.client("alice"))
    assert isinstance(refusal, Refusal)
    assert refusal.code is RefusalCode.NOT_ALLOWED
    assert "not authorised, or not any more" in refusal.words
    with pytest.raises(RefusedError, match="does not know this key"):
        talk(daemon, stage("again"), **files.client("alice"))
    assert status_of(daemon, files).queues[0].ready == ("before",)


def test_a_client_that_is_added_gets_in_without_a_restart(start_daemon: StartDaemon, files: KeyFiles) -> None:
    daemon = start_daemon(**TCP, **files.server())
    files.authorise(files.entry("eve", "stage"))
    assert isinstance(talk(daemon, stage("k"), **files.client("eve")), Staged)


# --- what is open to everybody ---


def test_an_address_that_others_reach_is_refused_without_keys_and_warned_of_with_insecure(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    everywhere = dict.fromkeys(TCP, "tcp://0.0.0.0:*")
    with pytest.raises(HostError, match=r"setting control_endpoint would let everybody in .*forebay keygen"):
        start_daemon(**everywhere)
    log = tmp_path / "log"
    daemon = start_daemon(**everywhere, insecure=True, log_file=log)
    see(daemon, lambda status: status.peer.pid == daemon.pid)
    daemon.close()
    told = [line for line in log.read_text().splitlines() if "insecure" in line]
    assert [line.split("endpoint=")[1].split(":")[0] for line in told] == ["tcp", "tcp"]
    assert all(" WARNING " in line for line in told)


def test_an_address_that_others_reach_is_allowed_with_keys_and_nobody_is_warned(
    start_daemon: StartDaemon, files: KeyFiles, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    daemon = start_daemon(**dict.fromkeys(TCP, "tcp://0.0.0.0:*"), **files.server(), log_file=log)
    daemon.close()
    assert "insecure" not in log.read_text()


def test_a_daemon_with_a_secret_that_others_may_read_does_not_start(
    start_daemon: StartDaemon, files: KeyFiles, shm_dir: Path
) -> None:
    (files.folder / "server.key_secret").chmod(0o644)
    with pytest.raises(HostError, match=r"others may read .*server.key_secret; got mode 0644"):
        start_daemon(**TCP, **files.server())
    assert list(shm_dir.iterdir()) == []


def test_a_client_with_a_secret_that_others_may_read_is_a_wrong_setting(files: KeyFiles) -> None:
    (files.folder / "alice.key_secret").chmod(0o644)
    with pytest.raises(SettingError, match=r"setting client_key_file: others may read"):
        StagingClient("tcp://127.0.0.1:1", **files.client("alice"))
