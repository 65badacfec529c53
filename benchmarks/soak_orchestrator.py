"""An orchestrator of the soak: stages keys until each of them is told a final outcome, whatever happens meanwhile.

Run as `python -m forebay.benchmarks.soak_orchestrator SETTINGS`. Its book says what it did and was told; a new
life goes on with the keys that have no final outcome there. Each line on its standard input is an order:
`cancel N` has the stage call under way cancelled that N picks; `finish` has it begin no more keys, and end when
all have an outcome; those about the queue and its policy version are in `soak_orders`. It ends when its standard
input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import signal
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Any, Final

import msgspec

from forebay.daemon import start_logging
from forebay.orchestrator_client import Refusal, Staged, StagingClient
from forebay.wire import (
    GONE,
    ForebayError,
    MicroBatchGoneError,
    MicroBatchState,
    RefusalCode,
    RefusedError,
    StaleError,
    words_of,
)

from .soak_client import ProxiedClient
from .soak_orders import QueueOrders
from .soak_payload import digest, freshness, micro_batch
from .soak_words import FINAL, QUEUE, STALE, Book, OrchestratorLine, Told, now, read_lines, say_at_work

_FINAL_STATES: Final = {
    MicroBatchState.CONSUMED: Told.CONSUMED,
    MicroBatchState.LOST: Told.LOST,
    MicroBatchState.DROPPED: Told.DROPPED,
}
_GONE: Final = {RefusalCode.STALE: STALE, RefusalCode.DROPPED: ""}
"""Refusals of a call that are final for its key, and the code of the line that says so."""
_AGAIN_S: Final = 0.2
"""Before a refused or failed call is made again, so that a daemon that is away is not flooded."""


class OrchestratorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a life of an orchestrator is given.

    Attributes:
        name: Prefix of its keys.
        life: Which of its processes this is, from 1 on.
        seed: Of the micro-batches.
        endpoint: The daemon's control endpoint, by way of the proxy.
        data_endpoint: Its data endpoint, by way of the proxy.
        client_key_file: Its own key, or empty.
        server_key_file: The daemon's key, or empty.
        has_versions: Whether micro-batches carry a policy version, and some an expiry.
        book: Its file.
        in_flight: Keys under way at once.
        codec: How arrays travel.
        wait_s: Seconds that an offer waits for a slot.
        timeout_s: Seconds for a stage call, and for a wait.
        retry_s: Seconds without an answer before a request is repeated.
        silence_s: Seconds without a word before the daemon is taken to be gone.
        connect_s: Seconds to wait for the daemon.
    """

    name: str
    life: int
    seed: int
    endpoint: str
    data_endpoint: str
    client_key_file: str
    server_key_file: str
    has_versions: bool
    book: str
    in_flight: int
    codec: str
    wait_s: float
    timeout_s: float
    retry_s: float
    silence_s: float
    connect_s: float


class Orchestrator:
    """One life."""

    def __init__(self, settings: OrchestratorSettings) -> None:
        self._settings = settings
        before = read_lines(Path(settings.book), OrchestratorLine)
        over = {line.key for line in before if line.what in FINAL}
        known = dict.fromkeys(line.key for line in before if line.key)
        self._acknowledged = {line.key for line in before if line.what is Told.STAGED}
        self._unfinished = deque(key for key in known if key not in over)
        # The greatest, not how many: one that was begun may have died before its first line.
        self._last_number = max((int(key.rpartition("/")[2]) for key in known), default=0)
        attempts = (line for line in reversed(before) if line.what is Told.ATTEMPT)
        self._versions = {line.key: line.policy_version for line in attempts}
        self._book = Book(Path(settings.book))
        self._orders = QueueOrders(self._book, settings.life, before)
        self._calls: dict[str, asyncio.Task[Staged | Refusal]] = {}
        self._cancelled: set[str] = set()
        self._finishes = False

    async def run(self) -> None:
        """Stages until told to finish, and all keys have an outcome."""
        async with contextlib.AsyncExitStack() as stack:
            client = await self._connect(stack)
            say_at_work()
            async with asyncio.TaskGroup() as group:
                orders = group.create_task(self._orders.carry_out(client))
                await asyncio.wait(
                    [group.create_task(self._keys(client)) for _ in range(self._settings.in_flight)]
                )
                orders.cancel()

    async def _connect(self, stack: contextlib.AsyncExitStack) -> StagingClient:
        while True:
            settings = self._settings
            client = ProxiedClient(
                settings.data_endpoint,
                settings.endpoint,
                name=settings.name,
                retry_s=settings.retry_s,
                silence_s=settings.silence_s,
                timeout_s=settings.connect_s,
                codec=settings.codec,
                client_key_file=settings.client_key_file,
                server_key_file=settings.server_key_file,
            )
            try:
                return await stack.enter_async_context(client)
            except ForebayError as error:
                self._failed("", error)
                await asyncio.sleep(_AGAIN_S)

    def order(self, words: str) -> None:
        """Does what a line of standard input says."""
        name, _, number = words.partition(" ")
        if name == "finish":
            self._finishes = True
        elif name != "cancel":
            self._orders.take(name, int(number))
        elif self._calls:
            key = list(self._calls)[int(number) % len(self._calls)]
            self._cancelled.add(key)
            self._calls[key].cancel()

    async def _keys(self, client: StagingClient) -> None:
        while (key := self._next_key()) is not None:
            tree = await asyncio.to_thread(micro_batch, self._settings.seed, key)
            tree_digest = await asyncio.to_thread(digest, tree)
            is_staged = key in self._acknowledged
            while True:
                if not is_staged:
                    is_staged, is_over = await self._stage(client, key, tree, tree_digest)
                else:
                    is_staged, is_over = await self._wait(client, key)
                if is_over:
                    break

    def _next_key(self) -> str | None:
        if self._unfinished:
            return self._unfinished.popleft()
        if self._finishes:
            return None
        self._last_number += 1
        return f"{self._settings.name}/{self._last_number}"

    async def _stage(self, client: StagingClient, key: str, tree: Any, tree_digest: str) -> tuple[bool, bool]:
        """Makes one stage call; returns whether the key is staged, and whether it is over."""
        settings = self._settings
        version, expires_s = self._freshness(key)
        line = OrchestratorLine(
            at=now(),
            life=settings.life,
            key=key,
            what=Told.ATTEMPT,
            digest=tree_digest,
            policy_version=version,
            expires_s=expires_s,
        )
        self._book.write(line)
        call = client.stage(
            tree,
            key=key,
            queue=QUEUE,
            wait_s=settings.wait_s,
            timeout_s=settings.timeout_s,
            policy_version=version,
            expires_s=expires_s,
        )
        task = self._calls[key] = asyncio.create_task(call)
        try:
            outcome = await task
        except asyncio.CancelledError:
            if key not in self._cancelled:
                raise
            self._write(key, Told.CANCELLED)
            return False, False
        except ForebayError as error:
            self._failed(key, error)
            await asyncio.sleep(_AGAIN_S)
            return False, False
        finally:
            self._cancelled.discard(key)
            del self._calls[key]
        if isinstance(outcome, Refusal):
            return await self._refused(key, outcome)
        self._write(key, Told.STAGED, code=outcome.state)
        if outcome.state in GONE:
            # A wait is told why as well.
            return True, False
        return True, self._is_over(key, outcome.state, "told by the answer to a repeated call")

    def _freshness(self, key: str) -> tuple[int | None, float | None]:
        """Returns a key's policy version, the same in each attempt, and in how many seconds it expires."""
        if not self._settings.has_versions:
            return None, None
        behind, expires_s = freshness(self._settings.seed, key)
        version = None if behind is None else max(0, self._orders.version - behind)
        return self._versions.setdefault(key, version), expires_s

    async def _refused(self, key: str, refusal: Refusal) -> tuple[bool, bool]:
        if refusal.code in _GONE:
            self._write(key, Told.DROPPED, code=_GONE[refusal.code], words=refusal.words)
            await asyncio.sleep(_AGAIN_S)
            return False, True
        self._write(key, Told.REFUSED, code=refusal.code, words=refusal.words)
        if refusal.code is RefusalCode.CONSUMED:
            return True, self._is_over(key, MicroBatchState.CONSUMED, refusal.words)
        if refusal.code is RefusalCode.IN_USE:
            return True, False
        await asyncio.sleep(_AGAIN_S)
        return False, False

    async def _wait(self, client: StagingClient, key: str) -> tuple[bool, bool]:
        """Waits for a staged key's end; returns whether it is still staged, and whether it is over."""
        try:
            state = await client.wait(key, queue=QUEUE, timeout_s=self._settings.timeout_s)
        except StaleError as stale:
            self._write(key, Told.DROPPED, code=STALE, words=stale.reason)
            return True, True
        except MicroBatchGoneError as gone:
            return True, self._is_over(key, MicroBatchState(gone.state), gone.reason)
        except RefusedError as refused:
            self._write(key, Told.REFUSED, code=refused.code, words=refused.words)
            return refused.code != RefusalCode.UNKNOWN_KEY, False
        except ForebayError as error:
            self._failed(key, error)
            await asyncio.sleep(_AGAIN_S)
            return True, False
        return True, self._is_over(key, state, "")

    def _is_over(self, key: str, state: MicroBatchState, words: str) -> bool:
        told = _FINAL_STATES.get(state)
        if told is not None:
            self._write(key, told, words=words)
        return told is not None

    def _failed(self, key: str, error: ForebayError) -> None:
        self._write(key, Told.ERROR, code=type(error).__name__, words=words_of(error))

    def _write(self, key: str, what: Told, *, code: str = "", words: str = "") -> None:
        life = self._settings.life
        self._book.write(OrchestratorLine(at=now(), life=life, key=key, what=what, code=code, words=words))


async def _serve(settings: OrchestratorSettings) -> None:
    orchestrator = Orchestrator(settings)
    loop = asyncio.get_running_loop()
    work = asyncio.create_task(orchestrator.run())
    loop.add_signal_handler(signal.SIGTERM, work.cancel)
    threading.Thread(target=_take_orders, args=(loop, orchestrator), daemon=True).start()
    with contextlib.suppress(asyncio.CancelledError):
        await work


def _take_orders(loop: asyncio.AbstractEventLoop, orchestrator: Orchestrator) -> None:
    # os.read, not sys.stdin: a thread inside of a buffered read would upset the interpreter's exit.
    rest = b""
    while piece := os.read(0, 4096):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            loop.call_soon_threadsafe(orchestrator.order, line.decode())
    os._exit(1)


def main() -> None:
    """Runs as a process of its own."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    start_logging("info")
    asyncio.run(_serve(msgspec.json.decode(sys.argv[1], type=OrchestratorSettings)))


if __name__ == "__main__":
    main()
