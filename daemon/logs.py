"""Where the daemon's log goes, and how it is written."""

from __future__ import annotations

import logging

from forebay.sockets import JsonLines, TextLines

LOG_FORMATS: dict[str, type[logging.Formatter]] = {"text": TextLines, "json": JsonLines}


def start_logging(level: str, log_format: str = "text") -> None:
    """Sends the log to standard error, times in UTC.

    Args:
        level: The least level that is written, as the setting `log_level` has it.
        log_format: A key of `LOG_FORMATS`.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(LOG_FORMATS[log_format]())
    root = logging.getLogger("forebay")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
