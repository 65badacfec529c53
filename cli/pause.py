"""`forebay pause`: has the daemon lend nothing more."""

from __future__ import annotations

from forebay.wire import Pause, RefusedError, Status, Valves

from .inspector import Conversation, Inspector, asks_daemon
from .json_option import JsonOption
from .names import QueueOrAllArgument
from .streams import say
from .valves import tell_valves
from .words import quoted


@asks_daemon(only_looks=False)
def pause(inspector: Inspector, queue: QueueOrAllArgument = None, json: JsonOption = False) -> None:
    """Lend nothing more of a queue, or of any."""
    valves, is_known = inspector.talk(lambda daemon: _pause(daemon, queue or ""))
    tell_valves(valves, as_json=json)
    if not is_known:
        say(f"no queue {quoted(queue or '')} is known yet; it will be held from its first micro-batch on")


async def _pause(daemon: Conversation, queue: str) -> tuple[Valves, bool]:
    valves = await daemon.ask(Pause(queue=queue), Valves, "the pause")
    return valves, not queue or await _is_known(daemon, queue)


async def _is_known(daemon: Conversation, queue: str) -> bool:
    try:
        status = await daemon.status()
    except RefusedError:  # who may operate need not be allowed to look
        return True
    return queue in _names(status)


def _names(status: Status) -> set[str]:
    held = {slot.queue for slot in status.slots} | {offer.queue for offer in status.offers}
    return held | {queue.name for queue in status.queues}
