"""What a worker remembers of calls that are over."""

from __future__ import annotations

from collections import OrderedDict

from forebay.wire import CallId, Raised, Returned

from .call_record import CallRecord

_MAX_BYTES = 64 << 20
_MAX_CLIENTS = 10_000


class CallMemory:
    """The last calls that are over, with their answers; of older ones only each client's highest number.

    A client numbers its calls in order, so what is not known and not above that number is taken to be over: it may
    never have come, and must not run that late either. Clients that were not heard of for very long are forgotten
    altogether.

    Args:
        remembered: Calls whose answers are kept, as long as they take no more than 64 MiB; the last one always is.
    """

    def __init__(self, remembered: int) -> None:
        self._remembered = remembered
        self._calls: OrderedDict[CallId, CallRecord] = OrderedDict()
        self._bytes = 0
        self._highest: OrderedDict[str, int] = OrderedDict()

    def __repr__(self) -> str:
        return f"CallMemory({len(self._calls)} calls, {self._bytes} bytes, {len(self._highest)} clients)"

    def get(self, call: CallId) -> CallRecord | None:
        """Returns a call whose answer is known."""
        return self._calls.get(call)

    def is_forgotten(self, call: CallId) -> bool:
        """Whether a call that is not known here must be taken to be over."""
        return call.number <= self._highest.get(call.client, 0)

    def add(self, call: CallRecord) -> None:
        """Remembers a call that is over, and forgets what is too much then."""
        self._calls[call.id] = call
        self._bytes += _answer_bytes(call)
        while len(self._calls) > 1 and (len(self._calls) > self._remembered or self._bytes > _MAX_BYTES):
            self._forget()

    def _forget(self) -> None:
        known, call = self._calls.popitem(last=False)
        self._bytes -= _answer_bytes(call)
        self._highest[known.client] = max(known.number, self._highest.get(known.client, 0))
        self._highest.move_to_end(known.client)
        if len(self._highest) > _MAX_CLIENTS:
            self._highest.popitem(last=False)


def _answer_bytes(call: CallRecord) -> int:
    match call.answer:
        case Returned(value=value) if value is not None:
            return value.nbytes
        case Raised(traceback=told):
            return len(told)
        case _:
            return 0
