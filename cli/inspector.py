"""How a command asks the daemon: where, with which keys, for how long; and the options for that, declared once."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Concatenate, Final, ParamSpec, TypeVar

import msgspec
import typer

from forebay.orchestrator_client.closing import in_own_thread
from forebay.orchestrator_client.key_choice import daemon_keys
from forebay.orchestrator_client.remote_errors import unexpected
from forebay.orchestrator_client.server_kind import DAEMON
from forebay.orchestrator_client.server_link import ServerLink
from forebay.sockets import Who, why_silent
from forebay.wire import BrokenError, GetStatus, Message, Status, Welcome, on_one_line

from .find_daemon import Where, others_here, where_to_ask

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=Message)

TIMEOUT_S: Final = 10.0
_SOON_S: Final = 0.5
"""Seconds after which somebody should have answered: now it is worth a look whether anybody is there at all."""
_RETRY_S: Final = 2.0


class Conversation:
    """What a command says to a daemon that has answered; given by `Inspector.talk`.

    Attributes:
        welcome: What it answered.
    """

    def __init__(self, link: ServerLink, welcome: Welcome, timeout_s: float) -> None:
        self._link = link
        self._timeout_s = timeout_s
        self.welcome = welcome

    async def ask(self, request: Message, answer: type[M], what: str, *, more_s: float = 0.0) -> M:
        """Asks, and returns the answer.

        Args:
            request: Without an id.
            answer: The kind of answer that says yes.
            what: What is waited for, for the error.
            more_s: Seconds for which the daemon may take its time, beside the usual ones.

        Raises:
            RefusedError: The daemon says no.
            WaitTimeoutError: No answer in time.
            BrokenError: The daemon stopped, or says nothing.
        """
        sent = msgspec.structs.replace(request, id=self._link.new_id())
        reply = await self._link.ask(sent, timeout_s=self._timeout_s + more_s, what=what)
        if isinstance(reply, answer):
            return reply
        raise unexpected(what, reply)

    async def status(self) -> Status:
        """Asks what the daemon holds now; raises as `ask` does."""
        return await self.ask(GetStatus(), Status, "the daemon's status")


@dataclasses.dataclass(frozen=True, slots=True)
class Inspector:
    """Asks a daemon on behalf of a command; nothing is open between two questions.

    Attributes:
        command: Its name, by which the daemon knows who asks.
        endpoint: Where; None for where it is found.
        timeout_s: Seconds for the hello, and for each question; None for as long as usual, and no longer than it
            takes to see that nobody listens.
        client_key_file: This user's own secret key file, for tcp.
        server_key_file: The daemon's public key file, for tcp.
        only_looks: Whether the command changes nothing: only then another daemon of this host will do as well.
    """

    command: str
    endpoint: str | None = None
    timeout_s: float | None = None
    client_key_file: str | None = None
    server_key_file: str | None = None
    only_looks: bool = True

    def ask(self, request: Message, answer: type[M], what: str) -> M:
        """Asks one thing; see `Conversation.ask` and `talk`."""
        return self.talk(lambda daemon: daemon.ask(request, answer, what))

    def status(self) -> Status:
        """Asks what the daemon holds now; see `talk`."""
        return self.talk(Conversation.status)

    def talk(self, say: Callable[[Conversation], Awaitable[T]]) -> T:
        """Connects, and has something said.

        Args:
            say: Says it, and returns what came out.

        Raises:
            WaitTimeoutError: No daemon answered, or not in time.
            BrokenError: Nobody listens there, or the daemon went away.
            RefusedError: The daemon does not know this user's key, or says no.
            VersionMismatchError: It speaks another version.
            ProtocolError: Somebody else answers there.
            SettingError: An endpoint or a key file cannot be used.
        """
        where = where_to_ask(self.endpoint)
        try:
            return asyncio.run(self._talk(where.endpoint, say))
        except _NobodyThereError as error:
            others = others_here(where.endpoint) if where.is_default else []
            if self.only_looks and len(others) == 1:
                _tell_other(where, others[0])
                return asyncio.run(self._talk(others[0], say))
            raise _with_others(error, others) from None

    async def _talk(self, endpoint: str, say: Callable[[Conversation], Awaitable[T]]) -> T:
        keys = daemon_keys(self.client_key_file, self.server_key_file)
        link = ServerLink(DAEMON, endpoint, name=f"forebay {self.command}", retry_s=_RETRY_S, keys=keys)
        try:
            welcome = await self._hello(link)
            timeout_s = TIMEOUT_S if self.timeout_s is None else self.timeout_s
            return await say(Conversation(link, welcome, timeout_s))
        finally:
            await link.close()

    async def _hello(self, link: ServerLink) -> Welcome:
        if self.timeout_s is not None:
            return await link.connect(self.timeout_s)
        hello = asyncio.create_task(link.connect(TIMEOUT_S))
        try:
            # Not sooner: a daemon tells in its log of those who connect only to look.
            await asyncio.wait([hello], timeout=_SOON_S)
            if not hello.done():
                await _see_somebody(link.endpoint)
            return await hello
        finally:
            hello.cancel()
            await asyncio.wait([hello])


class _NobodyThereError(BrokenError):
    """Nobody listens at the endpoint, for sure."""


async def _see_somebody(endpoint: str) -> None:
    found = await in_own_thread(why_silent, endpoint)
    if found.who is Who.NOBODY:
        raise _NobodyThereError(
            f"no daemon answers at control_endpoint {endpoint}: {found.words}",
            remedy=found.remedy(DAEMON.start, DAEMON.address_remedy),
        )


def _with_others(error: BrokenError, others: list[str]) -> BrokenError:
    if not others:
        return error
    named = " or ".join(f"--endpoint {other}" for other in others)
    return BrokenError(error.what, remedy=f"others of this host do, ask one with {named}; or {error.remedy}")


def _tell_other(where: Where, other: str) -> None:
    words = f"nobody listens at {where.endpoint}; this is the daemon at {other}"
    sys.stderr.write(f"forebay: {on_one_line(words)}\n")


def asks_daemon(
    *, only_looks: bool = True
) -> Callable[[Callable[Concatenate[Inspector, P], None]], Callable[..., None]]:
    """Makes a command of a function whose first argument is an `Inspector`: gives it the options for that.

    Args:
        only_looks: See `Inspector`.
    """

    def decorate(command: Callable[Concatenate[Inspector, P], None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(*args: P.args, **options: P.kwargs) -> None:
            shared: dict[str, Any] = {name: options.pop(name) for name in _SHARED}
            command(Inspector(command.__name__, only_looks=only_looks, **shared), *args, **options)

        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        signature = inspect.Signature([*own, *_SHARED.values()])
        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {name: one.annotation for name, one in signature.parameters.items()}
        return run

    return decorate


def _options(
    *,
    endpoint: Annotated[
        str | None, typer.Option(help="the daemon's control endpoint; default this host's daemon")
    ] = None,
    timeout_s: Annotated[
        float | None,
        typer.Option(
            help=f"seconds to wait for an answer; default {TIMEOUT_S:g}, and not where nobody listens", min=0
        ),
    ] = None,
    client_key_file: Annotated[str | None, typer.Option(help="own secret key file, for tcp")] = None,
    server_key_file: Annotated[str | None, typer.Option(help="the daemon's public key file, for tcp")] = None,
) -> None:
    """Has the options of all commands that ask the daemon."""


_SHARED: Final = inspect.signature(_options, eval_str=True).parameters
_COMPLETION_S: Final = 0.3
COMPLETION: Final = "completion"
"""As what a shell that completes a word is known to the daemon."""


def complete_queue(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes the name of a queue from what the daemon knows, or nothing if it does not answer at once."""
    given: dict[str, Any] = {
        name: ctx.params.get(name) for name in ("endpoint", "client_key_file", "server_key_file")
    }
    try:
        found = Inspector(COMPLETION, timeout_s=_COMPLETION_S, **given).status()
    except Exception:  # noqa: BLE001 - whatever is wrong, a shell that completes a word is no place to say so
        return []
    known = (queue.name for queue in found.queues)
    return [name for name in known if name.startswith(incomplete) and name.isprintable()]
