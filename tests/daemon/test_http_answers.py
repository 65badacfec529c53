"""What an HTTP client gets for what it sent, without a socket."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.daemon.http_answers import Answer, Request, answer_to, plain
from forebay.wire import WaitTimeoutError


def echo(request: Request) -> Answer:
    return plain(200, f"{request.path} {request.query} {request.accept}")


def silent(_request: Request) -> Answer:
    raise WaitTimeoutError("the loop is away")


def broken(_request: Request) -> Answer:
    raise ZeroDivisionError


PAGES = {"/echo": echo, "/silent": silent, "/broken": broken}


def get(line: bytes, *headers: bytes) -> tuple[int, bytes]:
    """Returns status and body."""
    head, _, body = answer_to(b"\r\n".join([line, *headers, b"", b""]), PAGES).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def test_a_page_is_told_path_query_and_what_the_client_prefers() -> None:
    assert get(b"GET /echo?a=1 HTTP/1.1", b"accept: text/x") == (200, b"/echo a=1 text/x\n")


def test_an_answer_says_its_length_and_that_it_is_not_to_be_kept() -> None:
    head = answer_to(b"GET /echo HTTP/1.0\r\n\r\n", PAGES).partition(b"\r\n\r\n")[0]
    assert head.startswith(b"HTTP/1.0 200 OK\r\nServer: forebay\r\n")
    assert b"\r\nContent-Length: 8\r\n" in head
    assert b"\r\nCache-Control: no-store\r\n" in head


def test_head_gets_the_same_without_the_body() -> None:
    whole, head = (answer_to(b"%s /echo HTTP/1.0\r\n\r\n" % method, PAGES) for method in (b"GET", b"HEAD"))
    assert whole.endswith(b"/echo  \n")
    assert head.endswith(b"\r\n\r\n")
    assert b"Content-Length: 8" in head


@pytest.mark.parametrize("method", [b"POST", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT", b"get", b"X"])
def test_whoever_wants_to_change_something_is_refused(method: bytes) -> None:
    answer = answer_to(method + b" /echo HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", PAGES)
    assert answer.startswith(b"HTTP/1.0 405 ")
    assert b"\r\nAllow: GET, HEAD\r\n" in answer


def test_an_unknown_path_is_told_which_there_are() -> None:
    assert get(b"GET /x HTTP/1.0") == (404, b"there are these pages: /echo /silent /broken\n")
    assert get(b"GET /echo/ HTTP/1.0")[0] == get(b"GET /../echo HTTP/1.0")[0] == 404


def test_a_loop_that_does_not_answer_is_unavailable_in_words() -> None:
    assert get(b"GET /silent HTTP/1.0") == (503, b"the loop is away\n")


def test_a_page_that_fails_is_told_in_the_log_and_not_to_the_client(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "forebay.http"):
        assert get(b"GET /broken HTTP/1.0")[0] == 500
    assert "ZeroDivisionError" in caplog.text


def test_a_look_is_not_logged(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    with caplog.at_level(logging.DEBUG):
        get(b"GET /echo HTTP/1.0")
        answer_to(b"rubbish\r\n\r\n", PAGES)
    assert (caplog.text, *capfd.readouterr()) == ("", "", "")


LINES = st.sampled_from([b"GET /echo HTTP/1.1", b"GET", b"GET /", b"GET  HTTP/9.9", b"HEAD /echo HTTP/0.9", b""])


@given(LINES | st.binary(), st.binary(max_size=200) | st.just(b"a: b\r\n" * 200))
def test_no_bytes_break_it_or_come_back_in_a_header(line: bytes, rest: bytes) -> None:
    answer = answer_to(line + b"\r\n" + rest + b"\r\n\r\n", PAGES)
    head = answer.partition(b"\r\n\r\n")[0]
    for row in head.split(b"\r\n")[1:] if answer.startswith(b"HTTP/") else []:
        name = row.partition(b":")[0]
        assert name in (
            b"Server",
            b"Date",
            b"Content-Type",
            b"Content-Length",
            b"Cache-Control",
            b"X-Content-Type-Options",
            b"Allow",
        )


def test_rubbish_is_answered_without_being_repeated() -> None:
    assert b"<script>" not in answer_to(b"GET <script> x y z\r\n\r\n", PAGES)
    assert b"<script>" not in answer_to(b"GET /<script> HTTP/1.0\r\n\r\n", PAGES)
