"""The soak's strangers: they get nothing of a daemon that keeps its word, and say so where one does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay import LocalDaemon, local_daemon
from forebay.benchmarks.soak_keys import INSPECTOR, NEIGHBOUR, STRANGER, SoakKeys
from forebay.benchmarks.soak_strangers import knock
from forebay.sockets import load_public_key

TCP: dict[str, Any] = dict.fromkeys(("control_endpoint", "data_endpoint"), "tcp://127.0.0.1:*")


@pytest.fixture
def keys(tmp_path: Path) -> SoakKeys:
    return SoakKeys(tmp_path)


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    return tmp_path / "daemon.log"


@pytest.fixture
def daemon(keys: SoakKeys, log_file: Path) -> Iterator[LocalDaemon]:
    with local_daemon(log_file=log_file, **TCP, **keys.of_daemon()) as daemon:
        yield daemon


@pytest.mark.slow
def test_nobody_without_the_keys_or_the_rights_gets_anything(
    daemon: LocalDaemon, keys: SoakKeys, log_file: Path
) -> None:
    assert knock(1, daemon.control_endpoint, keys) == []
    log = log_file.read_text()
    # All of them were there, and asked.
    assert "stranger_turned_away" in log
    assert log.count(f"client {INSPECTOR!r} lacks the right 'stage'") == 4
    assert log.count(f"client {NEIGHBOUR!r} lacks the right 'stage' in queue 'train'") == 4
    assert log.count(f"client {NEIGHBOUR!r} lacks the right 'inspect'") == 1


@pytest.mark.slow
def test_whoever_gets_something_is_found(daemon: LocalDaemon, keys: SoakKeys, tmp_path: Path) -> None:
    entries = []
    for name in (STRANGER, INSPECTOR, NEIGHBOUR):
        key = load_public_key(str(tmp_path / f"{name}.key"), "key_file").decode()
        entries.append(f'[{name}]\nkey = "{key}"\nrights = ["stage", "inspect"]\n')
    (tmp_path / "authorised.toml").write_text("".join(entries))
    got = knock(1, daemon.control_endpoint, keys)
    assert [" ".join(words.split()[:2]) for words in got] == [
        "stranger: greeting:",
        *(f"inspector: {what}:" for what in ("stage", "wait", "advance", "reset")),
        *(f"neighbour: {what}:" for what in ("stage", "wait", "advance", "reset", "status")),
    ]


@pytest.mark.slow
def test_a_daemon_without_keys_lets_everybody_in_and_that_is_found(keys: SoakKeys) -> None:
    with local_daemon(**TCP) as daemon:
        assert [words.split()[0] for words in knock(1, daemon.control_endpoint, keys)] == ["nobody:"]


@pytest.mark.slow
def test_where_there_is_no_daemon_nobody_gets_anything(keys: SoakKeys) -> None:
    with local_daemon(**TCP) as daemon:
        endpoint = daemon.control_endpoint
    assert knock(1, endpoint, keys) == []
