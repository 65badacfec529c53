"""What may name a micro-batch or a queue."""

from __future__ import annotations

from .errors import UsageError
from .limits import MAX_KEY_BYTES


def check_name(what: str, name: object, max_bytes: int = MAX_KEY_BYTES) -> None:
    """Checks what a caller passed for a name.

    Args:
        what: What it is to name, for the error.
        name: Anything.
        max_bytes: UTF-8 bytes that it may have.

    Raises:
        UsageError: It is no text, empty, too long, or cannot be written as UTF-8.
    """
    if not isinstance(name, str):
        nbytes, remedy = 0, "use str() of it"
    else:
        nbytes, remedy = _utf8_bytes(name), "choose another, such as a step's and a number"
    if not 0 < nbytes <= max_bytes:
        raise UsageError(f"the {what}", got=name, limit=f"text of 1 to {max_bytes} bytes of UTF-8", remedy=remedy)


def _utf8_bytes(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return 0
