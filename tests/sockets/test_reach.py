"""Why nobody answers: each wrong deployment is told apart from the others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.shm import SHARE_USER
from forebay.sockets import reach
from forebay.sockets.reach import LOOK_S, Finding, Who, why_silent

from .full_endpoint import full_endpoint

PATIENCE_S = 20.0
START, SET = "start one", "set its address"


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("here.sock")
        listener.listen()
        yield listener


@pytest.mark.usefixtures("listener")
def test_who_takes_the_connection_is_not_blamed() -> None:
    assert why_silent("ipc://here.sock").words == ""
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = why_silent(f"tcp://127.0.0.1:{server.getsockname()[1]}")
    assert (found.who, found.words) == (Who.SOMEBODY, "")
    assert START not in found.remedy(START, SET)


def test_a_socket_that_is_not_there_may_be_elsewhere(tmp_path: Path) -> None:
    found = why_silent(f"ipc://{tmp_path}/none.sock")
    assert found.words == f"there is no {tmp_path}/none.sock here"
    remedy = found.remedy(START, SET)
    assert remedy.startswith(f"{START}, or {SET}; if one runs, it is seen from elsewhere"), "the likeliest first"
    assert "PrivateTmp" in remedy
    assert why_silent(f"ipc://{tmp_path}/folder/none.sock").words == f"there is no {tmp_path}/folder here"


def test_a_socket_that_nobody_listens_at_was_left_behind(listener: socket.socket) -> None:
    listener.close()
    found = why_silent("ipc://here.sock")
    assert found.words == "nobody listens at that socket any more: whoever made it is gone"
    assert found.remedy(START, SET) == f"{START}, or {SET}"


@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_an_endpoint_that_is_full_says_so(shm_dir: Path, kind: str) -> None:
    with full_endpoint(f"ipc://{shm_dir}/full.sock" if kind == "ipc" else "tcp://127.0.0.1:*") as endpoint:
        found = why_silent(endpoint.address)
        assert "it takes no more connections now (max_connections)" in found.words
        assert START not in found.remedy(START, SET), "there is one"
        assert "elsewhere" not in found.remedy(START, SET)


def test_an_endpoint_that_was_full_when_it_was_killed_is_gone(listener: socket.socket) -> None:
    Path("here.sock").rename("here.sock.full")
    assert "max_connections" in why_silent("ipc://here.sock").words
    listener.close()
    assert why_silent("ipc://here.sock").words == "nobody listens at that socket any more: whoever made it is gone"


@pytest.mark.skipif(os.geteuid() != 0, reason="to become another user needs root")
def test_a_socket_of_another_user_is_told_by_both_uids() -> None:
    # The folder itself must be open to all: pytest's is not.
    folder = Path("/tmp") / f"forebay-test-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(folder / "private.sock"))
            other.listen()
            (folder / "private.sock").chmod(0o600)
            code = (
                "import os, sys; from forebay.sockets.reach import why_silent; os.setuid(65534);"
                f" found = why_silent('ipc://{folder}/private.sock');"
                f" print(found.words, found.remedy('{START}', '{SET}'), sep='; ')"
            )
            environment = os.environ | {"PYTHONPATH": str(Path(forebay.__file__).parents[1])}
            done = subprocess.run(
                [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
            )
        words = f"{folder}/private.sock is private to uid 0, and this process runs as uid 65534; {SHARE_USER}"
        assert done.stdout.strip() == words, done.stderr
    finally:
        (folder / "private.sock").unlink()
        folder.rmdir()


def test_a_port_that_nobody_listens_at_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    found = why_silent(f"tcp://127.0.0.1:{port}")
    assert (found.who, found.words) == (Who.NOBODY, "nobody listens there")


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("tcp://127.0.0.1:port", "'port' is no port"),
        ("tcp://127.0.0.1:65536", "'65536' is no port"),
        ("tcp://no.such.host.invalid:1", "the name no.such.host.invalid is not known here"),
        ("udp://127.0.0.1:1", "it is neither an ipc:// nor a tcp:// address"),
        ("ipc:///dev/null", "nobody listens at that socket any more"),
    ],
)
def test_what_is_no_address_is_told(endpoint: str, words: str) -> None:
    assert why_silent(endpoint).words.startswith(words)


def test_a_name_server_that_does_not_answer_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def ask(*_: Any, **__: Any) -> list[Any]:
        answers.wait(PATIENCE_S)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    try:
        found = why_silent("tcp://host.example:1")
        assert found.words == "the name host.example was not found within 1 s"
        assert found.remedy(START, SET) == f"see whether its name server answers; or {SET}"
        assert not answers.is_set()
    finally:
        answers.set()
        for thread in threading.enumerate():
            if thread.name == "forebay-name":
                thread.join(PATIENCE_S)


def test_all_addresses_of_a_name_are_tried_in_the_time_for_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    now, tried = [100.0], []

    def swallow(_: int, address: Any, within_s: float) -> Finding:
        tried.append(address)
        now[0] += within_s
        return Finding(Who.UNKNOWN, "packets to it are not answered")

    monkeypatch.setattr(reach, "_addresses", lambda *_: [(socket.AF_INET, number) for number in range(4)])
    monkeypatch.setattr(reach, "_look_at_address", swallow)
    monkeypatch.setattr("forebay.sockets.reach.time.monotonic", lambda: now[0])
    assert why_silent("tcp://host.example:1").words == "packets to it are not answered"
    assert tried == [0, 1, 2, 3]
    assert now[0] == pytest.approx(100 + LOOK_S)
