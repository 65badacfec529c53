"""The page for people: one text with its style and its script, which may do nothing but draw what it asks for."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from http import HTTPStatus
from typing import Final

from .http_answers import Answer

_HTML: Final = "text/html; charset=utf-8"


def page_answer() -> Answer:
    """Puts the page together.

    Its policy names style and script by their digests. What got into the page by another way would neither run nor
    be fetched, and nobody may show the page inside of another.
    """
    style, script = _part("page.css"), _part("page.js")
    body = _part("page.html").replace("/*style*/", style).replace("/*script*/", script)
    policy = (
        "default-src 'none'",
        f"style-src {_digest(style)}",
        f"script-src {_digest(script)}",
        "connect-src 'self'",
        "img-src data:",
        *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
        *("require-trusted-types-for 'script'", "trusted-types 'none'"),
    )
    headers = (("Content-Security-Policy", "; ".join(policy)), ("Referrer-Policy", "no-referrer"))
    return Answer(HTTPStatus.OK, body.encode(), _HTML, headers)


def _part(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text("utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
