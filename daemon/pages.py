"""The pages of the daemon's HTTP server, by path. What they tell of the ledger they ask the loop."""

from __future__ import annotations

from http import HTTPStatus

from .http_answers import Answer, Page, Request, plain
from .ledger import Ledger
from .loop_questions import LoopQuestions


def pages_of(questions: LoopQuestions, ledger: Ledger) -> dict[str, Page]:
    """Returns all pages.

    Args:
        questions: Reach the loop.
        ledger: Looked at by the loop alone.
    """

    def healthz(_request: Request) -> Answer:
        questions.ask(lambda: None)
        return plain(HTTPStatus.OK, "ok")

    def readyz(_request: Request) -> Answer:
        if questions.ask(lambda: ledger.is_draining):
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, "the daemon drains: it takes no new offers")
        return plain(HTTPStatus.OK, "ready")

    return {"/healthz": healthz, "/readyz": readyz}
