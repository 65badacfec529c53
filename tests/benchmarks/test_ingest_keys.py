"""The ways of the benchmark of ingest that have keys: real files, a real daemon, and nothing of the user's own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from forebay.benchmarks.ingest_keys import PROTECTIONS, make_keys
from forebay.benchmarks.ingest_result import IngestBenchSettings
from forebay.benchmarks.ingest_ways import Size, open_way
from forebay.benchmarks.peers.region import Region, digest, map_warm
from forebay.sockets import load_client_keys, load_key_pair
from forebay.wire import MIB, DataProtection, Right, read_clients

SETTINGS = IngestBenchSettings()
SIZE = Size.of(1)


@pytest.fixture
def source() -> Iterator[Region]:
    with Region(MIB) as region:
        region.fill()
        yield region


@pytest.mark.parametrize("protection", PROTECTIONS.values())
def test_keys_let_one_client_in_that_may_stage_whatever_the_umask(
    tmp_path: Path, protection: DataProtection
) -> None:
    before = os.umask(0)
    try:
        keys = make_keys(tmp_path, protection)
    finally:
        os.umask(before)
    assert keys.daemon["data_protection"] == protection
    client = load_client_keys(keys.client_key_file, keys.server_key_file, server_setting="server_key_file")
    assert client is not None
    assert client.server == load_key_pair(keys.daemon["key_file"], "key_file").public
    authorised = Path(keys.daemon["authorised_file"])
    [(key, known)] = read_clients(authorised.read_text(), "authorised.toml").items()
    assert key == client.own.public.decode()
    assert known.rights == {Right.STAGE}
    assert all(file.stat().st_mode & 0o022 == 0 for file in tmp_path.iterdir())


@pytest.mark.usefixtures("shm_dir")
@pytest.mark.parametrize("name", PROTECTIONS)
def test_the_daemon_of_a_way_has_keys_as_long_as_the_way_is_open(
    name: str, source: Region, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with open_way(name, SIZE, source, source, SETTINGS) as way:
        way.check(SIZE, digest(map_warm(source.path)))
        environments = [child.environ() for child in psutil.Process().children()]
        [daemon] = [found for found in environments if "FOREBAY_KEY_FILE" in found]
        assert daemon["FOREBAY_DATA_PROTECTION"] == PROTECTIONS[name]
        assert daemon["FOREBAY_CONTROL_ENDPOINT"].startswith("tcp:")
        assert Path(daemon["FOREBAY_KEY_FILE"]).is_relative_to(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("shm_dir")
def test_keys_that_the_user_has_set_are_not_used_with_a_daemon_without_keys(
    source: Region, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = make_keys(tmp_path, DataProtection.ENCRYPTED)
    monkeypatch.setenv("FOREBAY_CLIENT_KEY_FILE", keys.client_key_file)
    monkeypatch.setenv("FOREBAY_SERVER_KEY_FILE", keys.server_key_file)
    with open_way("forebay_tcp", SIZE, source, source, SETTINGS) as way:
        way.check(SIZE, digest(map_warm(source.path)))


@pytest.mark.usefixtures("shm_dir")
def test_what_the_user_insists_on_elsewhere_does_not_count_where_the_benchmark_made_the_daemon(
    source: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_LEAST_DATA_PROTECTION", "encrypted")
    with open_way("forebay_tcp", SIZE, source, source, SETTINGS) as way:
        way.check(SIZE, digest(map_warm(source.path)))
