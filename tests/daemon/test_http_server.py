"""The HTTP server over real sockets: who says nothing, or too much, keeps nobody else waiting."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from forebay.daemon import http_server
from forebay.daemon.http_address import HttpAddress
from forebay.daemon.http_answers import Answer, Request, plain
from forebay.daemon.http_server import HttpServer
from forebay.wire import HeldError, HostError

_PATIENCE_S = 60.0
ANY = HttpAddress("127.0.0.1", 0)


def page(_request: Request) -> Answer:
    return plain(200, "here")


@pytest.fixture
def server() -> Iterator[HttpServer]:
    before = set(threading.enumerate())
    server = HttpServer(ANY, {"/": page})
    yield server
    server.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(_PATIENCE_S)
        assert not thread.is_alive(), thread


def dial(server: HttpServer) -> socket.socket:
    return socket.create_connection(server.address, timeout=_PATIENCE_S)


def all_of(connection: socket.socket) -> bytes:
    """Returns what comes until the server hangs up."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while more := connection.recv(1 << 16):
            received += more
    return received


def get(server: HttpServer) -> bytes:
    with dial(server) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        return all_of(connection)


def test_a_request_that_comes_in_pieces_is_answered_once_and_the_connection_ends(server: HttpServer) -> None:
    with dial(server) as connection:
        for piece in (b"GE", b"T / HTTP/1.0\r", b"\n\r\n"):
            connection.sendall(piece)
        answer = all_of(connection)
    assert answer.startswith(b"HTTP/1.0 200 OK")
    assert answer.endswith(b"\r\n\r\nhere\n")


def test_a_hundred_who_say_nothing_keep_nobody_out(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_REQUEST_S", _PATIENCE_S)  # so that their time is not over meanwhile
    with contextlib.ExitStack() as idle:
        silent = [idle.enter_context(dial(server)) for _ in range(100)]
        for _ in range(20):
            assert get(server).endswith(b"here\n")
        assert all_of(silent[0]) == b"", "the first to come was hung up on"


def test_there_are_never_more_threads_than_it_may_have(server: HttpServer) -> None:
    with contextlib.ExitStack() as idle:
        for _ in range(100):
            idle.enter_context(dial(server))
            names = [thread.name for thread in threading.enumerate()]
            assert names.count("forebay-http-request") <= http_server._MAX_CONNECTIONS
        assert get(server).endswith(b"here\n")


def test_who_says_nothing_is_hung_up_on(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_REQUEST_S", 0.01)
    with dial(server) as silent, dial(server) as slow:
        slow.sendall(b"GET /")
        assert all_of(silent) == all_of(slow) == b""


def test_a_head_without_end_is_not_gathered(server: HttpServer) -> None:
    with dial(server) as connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while True:  # until it hangs up
            connection.sendall(b"x" * (1 << 16))
    assert get(server).endswith(b"here\n")


def test_who_hangs_up_in_the_middle_ends_nothing(server: HttpServer) -> None:
    for sent in (b"", b"GET", b"GET / HTTP/1.0\r\n\r\n"):
        for _ in range(20):
            with dial(server) as connection:
                connection.sendall(sent)
    assert get(server).endswith(b"here\n")


def test_an_address_that_somebody_has_is_told(server: HttpServer) -> None:
    with pytest.raises(HeldError, match=rf"http_endpoint 127\.0\.0\.1:{server.address.port}: something else"):
        HttpServer(server.address, {})


def test_an_address_of_another_host_cannot_be_had() -> None:
    with pytest.raises(HostError, match=r"http_endpoint 192\.0\.2\.1:80 cannot be bound"):
        HttpServer(HttpAddress("192.0.2.1", 80), {})


def test_it_listens_to_ipv6_as_well() -> None:
    if not socket.has_ipv6:
        pytest.skip("this Python knows no IPv6")
    try:
        server = HttpServer(HttpAddress("::1", 0), {"/": page})
    except HostError:
        pytest.skip("this host has no IPv6")
    try:
        assert str(server.address) == f"[::1]:{server.address.port}"
        assert get(server).endswith(b"here\n")
    finally:
        server.close()


def test_after_its_end_nobody_is_served_and_a_second_end_does_nothing(server: HttpServer) -> None:
    with dial(server) as idle:
        assert get(server)
        server.close()
        server.close()
        assert all_of(idle) == b""
        with pytest.raises(ConnectionRefusedError):
            dial(server)
