"""Errors, sorted by whose fault they are.

Every message is built from the same four parts: what happened, what was got, what the limit was, and what to do
about it. The parts stay readable as attributes, so that a caller never has to parse the text.
"""

from __future__ import annotations

_SHOWN_CHARS = 200


def printable(value: object) -> str:
    """Shows a value that may come from a peer so that it cannot drive a terminal.

    Args:
        value: Anything; strings lose their control characters, long text its middle.

    Returns:
        One line of at most about 200 characters.
    """
    text = value if isinstance(value, str) else _repr(value)
    if len(text) > 2 * _SHOWN_CHARS:
        # Whatever lies between is not shown, and may be long.
        text = text[:_SHOWN_CHARS] + text[-_SHOWN_CHARS:]
    text = on_one_line(text)
    if len(text) <= _SHOWN_CHARS:
        return text
    half = _SHOWN_CHARS // 2
    return f"{text[:half]}...{text[-half:]}"


def on_one_line(text: str) -> str:
    """Spells out what could drive a terminal or begin another line of a log; all else stays, however long."""
    return text if text.isprintable() else "".join(map(_spelled, text))


def _spelled(char: str) -> str:
    return char if char.isprintable() else ascii(char)[1:-1]


def words_of(error: BaseException) -> str:
    """Says what somebody else's error is, in one line: its kind, and its words if it has any that can be had."""
    try:
        return printable(f"{type(error).__name__}: {error}".removesuffix(": "))
    except Exception:  # noqa: BLE001 - its own __str__ may be broken
        return type(error).__name__


def _repr(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        return f"{type(value).__name__} too long to show"
    except Exception:  # noqa: BLE001 - its own __repr__ may be broken
        return f"{type(value).__name__} that cannot be shown"


class ForebayError(Exception):
    """The root of all errors that this package raises.

    Args:
        what: What happened, and to what.
        got: The offending value, if there is one.
        limit: What would have been accepted.
        remedy: What the reader can do about it.
    """

    def __init__(self, what: str, *, got: object = None, limit: object = None, remedy: str | None = None) -> None:
        self.what = what
        self.got = got
        self.limit = limit
        self.remedy = remedy
        parts = [what]
        if got is not None:
            parts.append(f"got {printable(got) or 'an empty text'}")
        if limit is not None:
            parts.append(f"limit {printable(limit)}")
        if remedy is not None:
            parts.append(remedy)
        super().__init__(on_one_line("; ".join(parts)))


class UsageError(ForebayError):
    """The caller of this process passed something that cannot be done; nothing has changed."""


class TreeError(UsageError):
    """A micro-batch holds something that cannot travel; the message names the leaf's path."""


class TooLargeError(TreeError):
    """Nothing but its size speaks against a micro-batch."""


class SettingError(UsageError):
    """A setting has a wrong value; the message names setting, value and range."""


class RemoteError(ForebayError):
    """The peer is wrong or says no; it is counted, and this side serves on."""


class ProtocolError(RemoteError):
    """The peer sent bytes that the protocol does not allow."""


class VersionMismatchError(RemoteError):
    """The two sides speak different protocol versions; the message names both."""


class RefusedError(RemoteError):
    """The daemon refused a request other than an offer.

    Args:
        code: The refusal code, see `forebay.wire.RefusalCode`.
        words: The daemon's explanation.
    """

    def __init__(self, code: str, words: str) -> None:
        super().__init__(f"refused ({code}): {printable(words)}")
        self.code = code
        self.words = words

    def __reduce__(self) -> tuple[type[RefusedError], tuple[str, str]]:
        return type(self), (self.code, self.words)


class UnknownNameError(RemoteError):
    """The daemon knows no queue, or no micro-batch, of the name that it was asked about."""


class MicroBatchGoneError(RemoteError):
    """A micro-batch will never reach the awaited state.

    Args:
        key: Its key.
        state: The state it ended in, see `forebay.wire.MicroBatchState`.
        reason: Why.
    """

    def __init__(self, key: str, state: str, reason: str) -> None:
        super().__init__(f"micro-batch {printable(key)!r} is {state}: {printable(reason)}")
        self.key = key
        self.state = state
        self.reason = reason

    def __reduce__(self) -> tuple[type[MicroBatchGoneError], tuple[str, str, str]]:
        return type(self), (self.key, self.state, self.reason)


class StaleError(MicroBatchGoneError):
    """A micro-batch was dropped because it was stale: its bytes should go no other way either."""


class LocalError(ForebayError):
    """A mistake in this package: stop, do not carry on with a state that cannot be trusted."""


class ClosedError(ForebayError):
    """The object was used after its owner closed it."""


class BrokenError(ForebayError):
    """The peer went away or never answered."""


class WaitTimeoutError(BrokenError, TimeoutError):
    """A wait ended without its event; the message says what was waited for and how long."""


class HostError(ForebayError):
    """The machine cannot give what is needed: memory, a lock, a path."""


class ShmFullError(HostError):
    """Shared memory has too little room; the message names need, free and mount point."""


class HeldError(HostError):
    """Another live process holds the pool or endpoint; the message names it."""
