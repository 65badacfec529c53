"""Judges who is there already: a running daemon, and whoever has its endpoints."""

from __future__ import annotations

from forebay.wire.errors import printable

from ..words import age
from .findings import Address, At, Running
from .line import Line, fail, ok, warn

_REPLACE = "stop it first, or choose another pool"


def judge_running(found: Running, *, before_start: bool) -> Line:
    """Judges the daemon that has the pool; nobody must have it before the start of another.

    Args:
        found: It.
        before_start: Whether one is about to be started. One that is ending may be gone by then: it is no reason
            not to try.
    """
    if not found.is_held:
        return ok("daemon", f"none has the pool {found.pool}")
    who = printable(found.answer.who if found.answer else found.holder) or "a process that has not named itself"
    if before_start:
        return _judge_obstacle(found, who)
    if not found.was_asked:
        return ok("daemon", f"{who} has the pool; it was not asked: {found.silence}")
    if found.answer is None:
        return fail(
            "daemon",
            f"{who} has the pool, and does not answer: {found.silence}",
            "give the control_endpoint that it was started with; if it is this one, see its log",
        )
    if found.answer.pool != found.pool:
        words = f"{who} has the pool, but at its endpoint answers one with the pool {printable(found.answer.pool)}"
        return fail("daemon", words, "give each daemon a pool and endpoints of its own")
    doing = "ending" if found.answer.is_draining else "serving"
    return ok("daemon", f"{who} is {doing}, up {age(found.answer.uptime_s)}")


def _judge_obstacle(found: Running, who: str) -> Line:
    if found.answer is not None and not found.answer.is_draining:
        return fail("daemon", f"{who} has the pool {found.pool}, and serves", _REPLACE)
    state = "ending" if found.answer else "perhaps ending: it does not answer"
    return warn("daemon", f"{who} has the pool {found.pool}, and is {state}", _REPLACE)


def judge_address(found: Address) -> Line:
    """Judges an endpoint's address."""
    check = found.setting.replace("_", " ")
    other = f"set {found.setting} to another address"
    match found.at:
        case At.NOBODY if found.is_certain:
            return ok(check, f"{found.address} is free")
        case At.NOBODY:
            return ok(check, f"{found.address} is known when it is bound")
        case At.DAEMON:
            return ok(check, f"{found.address} is the running daemon's")
        case At.OTHER:
            who = printable(found.words)
            return fail(check, f"{found.address} is held by {who}", f"stop it first, or {other}")
        case At.FOREIGN:
            words = f"at {found.address} listens a process that is no daemon; a daemon would take its place"
            return warn(check, words, f"stop it first, or {other}")
        case At.NOWHERE:
            return fail(check, f"{found.address} cannot be bound: {found.words}", other)
