"""What a client of the worker may ask for."""

from __future__ import annotations

from typing import assert_never

import msgspec

from forebay.wire import Call, CallId, CallRequest, CancelCall, Client, GetWorkerStatus, Hello, Right


def lacks_right(client: Client, request: CallRequest) -> str:
    """Returns the words to refuse a request with that its client has no right to; empty if it has."""
    match request:
        case Call() | CancelCall():
            return client.lacks(Right.TRAIN)
        case GetWorkerStatus():
            return client.lacks(Right.INSPECT)
        case Hello():
            # It shows nothing that whoever has any right may not know.
            return "" if client.rights else client.lacks(Right.TRAIN)
        case _:
            assert_never(request)


def own_call(client: Client, request: CallRequest) -> CallRequest:
    """Makes a call's id its client's own: nobody else repeats it for its answer, or takes it back."""
    if not client.name or not isinstance(request, Call | CancelCall):
        return request
    call = CallId(f"{client.name}:{request.call.client}", request.call.number)
    return msgspec.structs.replace(request, call=call)
