"""Daemons with keys, and clients with right, wrong and no keys; with real processes and sockets."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import zmq

from forebay import LocalDaemon, Refusal, Staged, StagingClient
from forebay.cli.inspector import Inspector
from forebay.wire import (
    CHUNK_HEADER_BYTES,
    BrokenError,
    ChunkHeader,
    DataProtection,
    ExitCode,
    HostError,
    RefusalCode,
    RefusedError,
    SettingError,
    Status,
    WaitTimeoutError,
)

from ..sockets.key_files import KeyFiles
from .processes import EVENT_S, StartDaemon, all_free, see

T = TypeVar("T")
TCP: dict[str, Any] = dict.fromkeys(("control_endpoint", "data_endpoint"), "tcp://127.0.0.1:*")
SHORT_S = 2.0
"""Seconds after which a client gives up that can never be let in."""


@pytest.fixture
def files(tmp_path: Path) -> KeyFiles:
    files = KeyFiles(tmp_path, "alice", "bob", "eve", "inspector")
    files.authorise(
        files.entry("alice", "stage"),
        files.entry("bob", "stage", queues=["bobs"]),
        files.entry("inspector", "inspect"),
    )
    return files


def tree(number: int = 0, count: int = 1_000_000) -> dict[str, Any]:
    return {"x": np.arange(number, number + count)}


def talk(daemon: LocalDaemon, what: Callable[[StagingClient], Awaitable[T]], **options: Any) -> T:
    async def run() -> T:
        async with StagingClient(daemon.control_endpoint, **({"timeout_s": EVENT_S} | options)) as client:
            return await what(client)

    return asyncio.run(run())


def stage(key: str, queue: str = "train", *, wait_s: float = 0.0) -> Callable[[StagingClient], Awaitable[Any]]:
    return lambda client: client.stage(tree(), key=key, queue=queue, wait_s=wait_s)


def status_of(daemon: LocalDaemon, files: KeyFiles) -> Status:
    return talk(daemon, lambda client: client.status(), **files.client("inspector"))


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


# --- the data endpoint ---


def test_chunks_that_nobody_was_granted_are_thrown_away_and_counted_where_data_is_not_encrypted(
    start_daemon: StartDaemon, files: KeyFiles
) -> None:
    daemon = start_daemon(**TCP, **files.server(data_protection="authenticated"))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context.socket(zmq.PUSH) as eve:
        eve.linger = 0
        eve.connect(daemon.ready.data_endpoint)
        for token in range(10):
            header = ChunkHeader(slot=0, span=0, length=8, generation=1, token=token, offset=0, checksum=0)
            eve.send_multipart([header.pack(), b"x" * 8])
        eve.send_multipart([b"?" * CHUNK_HEADER_BYTES, b"x"])

        async def run(client: StagingClient) -> Status:
            while True:
                status = await client.status()
                if status.counters.get("chunk_not_granted") == 10 and status.counters.get("chunk_malformed") == 1:
                    return status

        status = talk(daemon, run, **files.client("inspector"))
    context.term()
    assert all(slot.state == "FREE" for slot in status.slots)
    assert isinstance(talk(daemon, stage("k"), **files.client("alice")), Staged)


def test_nobody_without_a_known_key_gets_a_chunk_into_an_encrypted_data_endpoint(
    start_daemon: StartDaemon, files: KeyFiles
) -> None:
    daemon = start_daemon(**TCP, **files.server())
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context.socket(zmq.PUSH) as eve:
        eve.linger = 0
        eve.immediate = True
        eve.connect(daemon.ready.data_endpoint)
        # With `immediate` there is room only once a connection is through its handshake.
        assert not eve.poll(1000, zmq.POLLOUT)
    context.term()
    assert isinstance(talk(daemon, stage("k"), **files.client("alice")), Staged)
    assert not [name for name in status_of(daemon, files).counters if name.startswith("chunk_")]


def test_a_client_of_an_ipc_control_endpoint_is_told_that_the_data_endpoint_wants_keys(
    start_daemon: StartDaemon, files: KeyFiles
) -> None:
    daemon = start_daemon(data_endpoint="tcp://127.0.0.1:*", **files.server())
    with pytest.raises(SettingError, match=r"data endpoint tcp://.* is encrypted, and this client has no keys"):
        talk(daemon, stage("k", wait_s=EVENT_S))
    assert isinstance(talk(daemon, stage("k"), **files.client("alice")), Staged)


def test_a_client_that_the_data_endpoint_does_not_know_is_told_so_and_dials_anew_in_its_next_call(
    start_daemon: StartDaemon, files: KeyFiles
) -> None:
    daemon = start_daemon(data_endpoint="tcp://127.0.0.1:*", **files.server())

    async def run(client: StagingClient) -> Any:
        for key in ("one", "two"):
            with pytest.raises(
                RefusedError, match=r"the data endpoint tcp://.* does not know this key; have"
            ) as got:
                await client.stage(tree(), key=key)
            assert got.value.code == RefusalCode.NOT_ALLOWED
        files.authorise(files.entry("eve", "stage"))
        return await client.stage(tree(), key="three")

    assert isinstance(talk(daemon, run, **files.client("eve")), Staged)
    [queue] = talk(daemon, lambda client: client.status()).queues
    assert queue.ready == ("three",)


def test_a_daemon_without_keys_tells_that_nothing_guards_its_data(start_daemon: StartDaemon) -> None:
    async def protection(client: StagingClient) -> DataProtection:
        return client._welcome.data_protection

    assert talk(start_daemon(**TCP), protection) is DataProtection.NONE


# --- a client that insists ---


@pytest.fixture
def insists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_LEAST_DATA_PROTECTION", "encrypted")


@pytest.mark.usefixtures("insists")
def test_a_client_that_insists_on_encryption_sends_nothing_where_data_is_only_authenticated(
    start_daemon: StartDaemon, files: KeyFiles
) -> None:
    daemon = start_daemon(**TCP, **files.server(data_protection="authenticated"))
    with pytest.raises(SettingError) as caught:
        talk(daemon, stage("k"), **files.client("alice"))
    for words in (
        daemon.ready.data_endpoint,
        "got authenticated; limit encrypted",
        "FOREBAY_LEAST_DATA_PROTECTION",
    ):
        assert words in str(caught.value)


@pytest.mark.usefixtures("insists")
def test_a_client_that_insists_on_encryption_sends_nothing_where_nothing_guards(start_daemon: StartDaemon) -> None:
    with pytest.raises(SettingError, match="set client_key_file and server_key_file"):
        talk(start_daemon(**TCP), stage("k"))


@pytest.mark.usefixtures("insists")
@pytest.mark.parametrize("least", ["authenticated", "none"])
def test_what_a_client_is_given_to_insist_on_wins_over_its_environment(
    start_daemon: StartDaemon, files: KeyFiles, least: str
) -> None:
    daemon = start_daemon(**TCP, **files.server(data_protection="authenticated"))
    assert isinstance(talk(daemon, stage("k"), least_data_protection=least, **files.client("alice")), Staged)


@pytest.mark.usefixtures("insists")
def test_the_status_is_shown_to_whoever_insists_since_no_bulk_data_is_sent_for_it(
    start_daemon: StartDaemon,
) -> None:
    found = Inspector("status", start_daemon(**TCP).control_endpoint, EVENT_S).status()
    assert found.queues == ()


@pytest.mark.usefixtures("insists")
def test_a_client_that_insists_on_encryption_trusts_the_file_system(start_daemon: StartDaemon) -> None:
    assert isinstance(talk(start_daemon(), stage("k")), Staged)


@pytest.mark.usefixtures("insists")
def test_a_client_that_insists_sends_nothing_to_a_daemon_that_was_switched_meanwhile(
    start_daemon: StartDaemon, files: KeyFiles
) -> None:
    data: dict[str, Any] = {"data_endpoint": "tcp://127.0.0.1:*"}
    before = start_daemon(**data, **files.server())

    async def run(client: StagingClient) -> None:
        assert isinstance(await client.stage(tree(), key="one"), Staged)
        before.close()
        start_daemon(**data, **files.server(data_protection="authenticated"))
        with pytest.raises(SettingError, match="got authenticated; limit encrypted"):
            await client.stage(tree(), key="two")
        assert all(slot.received_bytes == 0 for slot in (await client.status()).slots)

    talk(before, run, **files.client("alice"))


@pytest.mark.parametrize("protection", ["encrypted", "authenticated"])
def test_a_client_tells_once_what_guards_its_data(
    start_daemon: StartDaemon, files: KeyFiles, caplog: pytest.LogCaptureFixture, protection: str
) -> None:
    daemon = start_daemon(**TCP, **files.server(data_protection=protection))

    async def run(client: StagingClient) -> None:
        for key in ("one", "two"):
            assert isinstance(await client.stage(tree(), key=key), Staged)

    with caplog.at_level(logging.INFO):
        talk(daemon, run, **files.client("alice"))
    assert caplog.text.count(f"data_endpoint address={daemon.ready.data_endpoint} guard={protection}") == 1


def test_a_client_with_another_key_for_the_data_endpoint_alone_hears_so_soon_and_what_to_check(
    start_daemon: StartDaemon, files: KeyFiles
) -> None:
    daemon = start_daemon(data_endpoint="tcp://127.0.0.1:*", **files.server())

    async def run(client: StagingClient) -> None:
        with pytest.raises(BrokenError) as caught:
            await client.stage(tree(), key="k")
        words = str(caught.value)
        assert words.startswith(
            f"nothing that is sent to data_endpoint {daemon.ready.data_endpoint} of the daemon"
        )
        assert "not the one in server_key_file (FOREBAY_SERVER_KEY_FILE)" in words
        assert "set data_endpoint" not in words

    talk(daemon, run, retry_s=0.1, silence_s=1.0, **files.client("alice", server="bob"))
    see(daemon, all_free)


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
