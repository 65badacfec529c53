"""What guards a daemon's data endpoint: who gets nothing into it, and a client that insists."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import zmq

from forebay import Staged, StagingClient
from forebay.cli.inspector import Inspector
from forebay.wire import (
    CHUNK_HEADER_BYTES,
    BrokenError,
    ChunkHeader,
    DataProtection,
    RefusalCode,
    RefusedError,
    SettingError,
    Status,
)

from ..sockets.key_files import KeyFiles
from .keyed_talk import TCP, some_keys, stage, status_of, talk, tree
from .processes import EVENT_S, StartDaemon, all_free, see


@pytest.fixture
def files(tmp_path: Path) -> KeyFiles:
    return some_keys(tmp_path)


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
