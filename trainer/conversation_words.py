"""What people are told of a trainer's conversation with the daemon."""

from __future__ import annotations

from forebay.wire import Detach, Finished, Promoted, RefusalCode, Refused, RefusedError, printable


def refusal_of(refused: Refused) -> RefusedError:
    """Makes the error for a refusal: the daemon's words, and what to do where only this side can tell."""
    words = refused.words
    if refused.code is RefusalCode.QUEUE_TAKEN:
        words = f"{words}; stop it, or attach to another queue"
    elif refused.code is RefusalCode.BAD_REQUEST and not refused.id:
        # Of a request that could be read it would repeat the id.
        words = (
            f"what listens there is no trainer endpoint, and cannot read what it is sent ({words});"
            " set trainer_endpoint (FOREBAY_TRAINER_ENDPOINT) to the daemon's"
        )
    return RefusedError(refused.code, words)


def told(report: Promoted | Finished | Detach) -> str:
    """Says in words what a report tells the daemon."""
    match report:
        case Promoted(key=key, slot=slot):
            return f"micro-batch {printable(key)!r} is on the device, and slot {slot} released"
        case Finished(key=key, reason=""):
            return f"micro-batch {printable(key)!r} is consumed"
        case Finished(key=key, reason=reason):
            return f"micro-batch {printable(key)!r} is dropped: {printable(reason)}"
        case Detach():
            return "this trainer leaves"
