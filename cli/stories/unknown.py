"""What can be said of a micro-batch that the daemon does not know, or not any more."""

from __future__ import annotations

import difflib

from forebay.wire import Event, Moment, RefusalCode

from ..words import age, listed, named, quoted
from .seen import Case, Judgement, Seen, refusal_of


def unknown(seen: Seen) -> Judgement:
    """Judges a key that the daemon knows no micro-batch of."""
    own = [moment for moment in seen.own if moment.event in (Event.REFUSE, Event.FORGET)]
    last = own[-1] if own else None
    if last is not None and last.event == Event.FORGET:
        words = f"it was forgotten {seen.ago(last)} by {last.who or 'an operator'}, and not offered since"
        return Judgement(Case.FORGOTTEN, words, "the key can be staged as if it were new")
    if last is not None:
        return _refused(seen, last)
    if seen.own:
        last = seen.own[-1]
        words = f"it is over, and its end is forgotten: it was {last.event} {seen.ago(last)}"
        return Judgement(Case.FORGOTTEN, words, "raise remembered_keys to have more ends kept")
    others = list(dict.fromkeys(moment.queue for moment in seen.moments))
    if others:
        words = f"queue {quoted(seen.queue)} never had it; it was offered to {listed(others)}"
        return Judgement(Case.OTHER_QUEUE, words, f"ask with --queue {quoted(others[0])}, or correct the sender")
    return _never_offered(seen)


def _refused(seen: Seen, refusal: Moment) -> Judgement:
    code, said = refusal_of(refusal)
    words = f"it was refused {seen.ago(refusal)} ({code}): {said}"
    times = sum(moment.event == Event.REFUSE for moment in seen.own)
    if times > 1:
        words += f"; {times} refusals in all"
    if code == RefusalCode.DRAINING and not seen.status.draining:
        return Judgement(Case.REFUSED, words, "the daemon takes offers again: have the sender stage it again")
    return Judgement(Case.REFUSED, words, REFUSAL_REMEDIES.get(code, "the words say what is to be changed"))


REFUSAL_REMEDIES: dict[str, str] = {
    RefusalCode.NO_SLOT: "see what holds the slots now (forebay slots)",
    RefusalCode.SHM_FULL: "enlarge the mount, or ask for fewer or smaller slots",
    RefusalCode.TOO_LARGE: "raise slot_max_bytes, or send less at once",
    RefusalCode.TOO_MANY_OFFERS: "the senders are far ahead: let them wait, or raise max_waiting_offers",
    RefusalCode.STALE: "have the sender make it anew; max_age_s and max_versions_behind are the limits",
    RefusalCode.DRAINING: "let the daemon take offers again (forebay resume), or start it again if it stops",
    RefusalCode.CONSUMED: "the sender needs a new key for a new micro-batch",
    RefusalCode.IN_USE: "the sender has to wait until it is trained",
    RefusalCode.NOT_ALLOWED: "give the sender's key the right to stage in this queue (authorised_file)",
    RefusalCode.BAD_MANIFEST: "correct what the sender stages; the words name it",
}


def _never_offered(seen: Seen) -> Judgement:
    words = f"queue {quoted(seen.queue)} never had it, as far back as the daemon remembers, which"
    words += f" started {age(seen.status.uptime_s)} ago"
    queue = seen.train_queue
    if queue is not None and seen.key in queue.waits_for:
        words += f"; its trainer, {named(queue.trainer)}, has waited for it for {age(queue.asks_s)}"
    if seen.status.draining:
        words += "; the daemon takes nothing in now"
    alike = difflib.get_close_matches(seen.key, sorted(_known_keys(seen)), n=3)
    if alike:
        return Judgement(Case.NEVER_OFFERED, words, f"look at the key: there is {listed(alike)}")
    return Judgement(Case.NEVER_OFFERED, words, "look at the sender: it has not offered this key here")


def _known_keys(seen: Seen) -> set[str]:
    status = seen.status
    keys = {slot.key for slot in status.slots if slot.key} | {offer.key for offer in status.offers}
    return keys.union(*((*queue.ready, *queue.on_device) for queue in status.queues))
