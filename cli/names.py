"""How a command line names a queue or a micro-batch; empty names, as of unset variables, are refused."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from forebay.wire import QueueStatus, UnknownNameError, check_name

from .inspector import complete_queue
from .words import listed, quoted


def _checked(param: typer.CallbackParam, value: str | None) -> str | None:
    if value is not None:
        name = param.opts[0]
        check_name(f"value of {name}", value)
    return value


def _queue(make: Any, meaning: str) -> Any:
    return make(help=meaning, autocompletion=complete_queue, callback=_checked)


KeyArgument = Annotated[str, typer.Argument(help="the micro-batch's", callback=_checked)]
InQueueOption = Annotated[str, _queue(typer.Option, "the micro-batch's")]
QueueArgument = Annotated[str, _queue(typer.Argument, "its name")]
QueueOrAllArgument = Annotated[str | None, _queue(typer.Argument, "its name; default all queues")]
OnlyQueueOption = Annotated[str | None, _queue(typer.Option, "only what is of this queue")]
OnlyKeyOption = Annotated[str | None, typer.Option(help="only what is of this key", callback=_checked)]


def unknown_queue(name: str, known: tuple[QueueStatus, ...]) -> UnknownNameError:
    """Makes the error for a queue that the daemon does not know, which names those that there are."""
    names = [queue.name for queue in known]
    remedy = f"there is {listed(names)}" if names else "there is none: nobody has staged or attached"
    return UnknownNameError(f"no queue {quoted(name)}", remedy=remedy)
