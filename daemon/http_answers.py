"""What an HTTP client gets for the bytes that it sent: no socket here, and no clock."""

from __future__ import annotations

import dataclasses
import io
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Final

from forebay.sockets import tell_failure
from forebay.wire import Event, WaitTimeoutError

log = logging.getLogger("forebay.http")

PLAIN: Final = "text/plain; charset=utf-8"
_METHODS: Final = ("GET", "HEAD")


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What a page is asked for.

    Attributes:
        path: Without the query.
        query: What follows a question mark.
        accept: Content types that the client prefers, as it wrote them.
    """

    path: str
    query: str = ""
    accept: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What a page says.

    Attributes:
        status: HTTP status code.
        body: Its bytes.
        content_type: Of the body.
        headers: What else is said of it, by name.
    """

    status: int
    body: bytes
    content_type: str = PLAIN
    headers: tuple[tuple[str, str], ...] = ()


Page = Callable[[Request], Answer]
"""May wait for the loop; what it raises, but for a `WaitTimeoutError`, is a bug."""

Pages = Mapping[str, Page]
"""By path."""


def plain(status: int, words: str) -> Answer:
    """Makes an answer of one line of text."""
    return Answer(status, f"{words}\n".encode())


def answer_to(head: bytes, pages: Pages) -> bytes:
    """Returns the bytes that answer a request.

    Args:
        head: Its first line and headers; any bytes.
        pages: What there is.
    """
    return _Handler(head, pages).answer


def _page_answer(request: Request, pages: Pages) -> Answer:
    page = pages.get(request.path)
    if page is None:
        return plain(HTTPStatus.NOT_FOUND, f"there are these pages: {' '.join(pages)}")
    try:
        return page(request)
    except WaitTimeoutError as error:
        return plain(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
    except Exception as error:  # noqa: BLE001 - the daemon serves on
        tell_failure(log, logging.ERROR, Event.PAGE_FAILED, error, path=request.path)
        return plain(HTTPStatus.INTERNAL_SERVER_ERROR, "the page failed; the daemon's log says why")


class _Handler(BaseHTTPRequestHandler):
    """Reads one request and writes one answer, both in memory."""

    def __init__(self, head: bytes, pages: Pages) -> None:
        # Not the parent's, which takes a socket and reads from it.
        self._pages = pages
        self.rfile, self.wfile = io.BytesIO(head), io.BytesIO()
        self.handle_one_request()
        self.answer = self.wfile.getvalue()

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if self.command not in _METHODS:
            self._say(plain(HTTPStatus.METHOD_NOT_ALLOWED, f"only {' and '.join(_METHODS)}"))
            return False
        return True

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        request = Request(path, query, self.headers.get("Accept", ""))
        self._say(_page_answer(request, self._pages))

    do_HEAD = do_GET  # noqa: N815 - the library's name

    def _say(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        for name, value in answer.headers:
            self.send_header(name, value)
        if answer.status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", ", ".join(_METHODS))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        del message, explain  # they repeat the client's bytes
        self._say(plain(code, HTTPStatus(code).phrase))

    def version_string(self) -> str:
        return "forebay"

    def log_message(self, *_: object) -> None:
        """Says nothing: a look at the health every few seconds is no event."""
