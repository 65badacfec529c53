"""The pages of the daemon's HTTP server, by path. What they tell of the ledger they ask the loop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from http import HTTPStatus

from forebay.version import VERSION
from forebay.wire import PROTOCOL_VERSION, WaitTimeoutError

from .figures import Figures
from .http_answers import Answer, Page, Request, plain
from .ledger import Ledger
from .loop_questions import LoopQuestions
from .memory_watch import private_bytes
from .metrics_text import metrics_text
from .samples import ProcessFigures, Values, values_of
from .server_sockets import Headcount, ServerSockets


class DaemonPages:
    """What supervisors and Prometheus ask for.

    Args:
        questions: Reach the loop.
        ledger: Looked at by the loop alone.
        sockets: Looked at by the loop alone.
        max_private_bytes: Returns the setting, which may be read again meanwhile.
    """

    def __init__(
        self,
        questions: LoopQuestions,
        ledger: Ledger,
        sockets: ServerSockets,
        *,
        max_private_bytes: Callable[[], int],
    ) -> None:
        self._questions = questions
        self._ledger = ledger
        self._sockets = sockets
        self._max_private_bytes = max_private_bytes
        self._started_at = time.time()

    def by_path(self) -> dict[str, Page]:
        """Returns all pages."""
        return {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._metrics}

    def _healthz(self, _request: Request) -> Answer:
        self._questions.ask(lambda: None)
        return plain(HTTPStatus.OK, "ok")

    def _readyz(self, _request: Request) -> Answer:
        if words := self._questions.ask(lambda: self._ledger.why_not_ready):
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, words)
        return plain(HTTPStatus.OK, "ready")

    def _metrics(self, request: Request) -> Answer:
        return Answer(HTTPStatus.OK, *metrics_text(self._values(), request.accept))

    def _values(self) -> Values:
        # A loop that hangs is told as such: no answer at all could as well mean a daemon that is gone.
        figures: Figures | None = None
        headcounts: tuple[Headcount, ...] = ()
        began = time.monotonic()
        with contextlib.suppress(WaitTimeoutError):
            figures, headcounts = self._questions.ask(self._look)
        process = ProcessFigures(
            version=VERSION,
            protocol=PROTOCOL_VERSION,
            started_at=self._started_at,
            private_bytes=private_bytes(),
            max_private_bytes=self._max_private_bytes(),
            answer_s=time.monotonic() - began,
        )
        return values_of(process, figures, headcounts)

    def _look(self) -> tuple[Figures, tuple[Headcount, ...]]:
        return self._ledger.figures(time.monotonic()), self._sockets.headcounts()
