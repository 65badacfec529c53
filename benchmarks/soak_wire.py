"""A stand-in for the network between an orchestrator and the daemon: a proxy that cuts what it carries.

It forwards TCP, whatever the bytes, and has a port for each of the daemon's two.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Self

from forebay.wire import WaitTimeoutError

from .soak_faults import DROP, STALL, SWALLOW, TO_DAEMON, TO_ORCHESTRATOR

_PIECE_BYTES: Final = 256 << 10
_START_S: Final = 10.0
_HOST: Final = "127.0.0.1"
_PORTS: Final = range(20_000, 32_000)
"""Below those that the kernel gives to clients: a client of a port there could connect to itself."""


def free_ports(count: int) -> list[int]:
    """Returns ports of this host that nobody listens at."""
    found: list[int] = []
    start = _PORTS.start + (threading.get_native_id() * 97) % len(_PORTS)
    for port in (*range(start, _PORTS.stop), *range(_PORTS.start, start)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((_HOST, port))
            found.append(port)
        if len(found) == count:
            break
    return found


def address(port: int) -> str:
    """Returns the address of a port of this host."""
    return f"tcp://{_HOST}:{port}"


class Wire:
    """All connections between one orchestrator and the daemon; a context manager, with a thread of its own.

    Args:
        control_port: Of the daemon.
        data_port: Of the daemon.
        own_ports: Where it listens for each of the two.

    Attributes:
        endpoint: Where the orchestrator dials.
        data_endpoint: Where it sends its chunks.
    """

    def __init__(self, control_port: int, data_port: int, own_ports: tuple[int, int]) -> None:
        own_control, own_data = own_ports
        self.endpoint = address(own_control)
        self.data_endpoint = address(own_data)
        self._routes = {own_control: control_port, own_data: data_port}
        self._loop = asyncio.new_event_loop()
        self._is_up = threading.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._passes = {TO_DAEMON: asyncio.Event(), TO_ORCHESTRATOR: asyncio.Event()}
        self._cuts: collections.Counter[tuple[str, str]] = collections.Counter()
        self._thread = threading.Thread(target=self._run, name="soak-wire", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._is_up.wait(_START_S):
            raise WaitTimeoutError(f"waited {_START_S:g} s for the proxy at {self.endpoint} to start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(_START_S)

    def begin(self, how: str, way: str) -> None:
        """Begins a cut: drops all connections, or swallows or stalls what goes one way or both."""
        self._loop.call_soon_threadsafe(self._begin, how, way)

    def end(self, how: str, way: str) -> None:
        """Ends a cut that was begun so; what no other one holds back passes again.

        Connections that lost bytes are dropped, as TCP would.
        """
        self._loop.call_soon_threadsafe(self._end, how, way)

    # On the thread.

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        for passes in self._passes.values():
            passes.set()
        servers = [
            await asyncio.start_server(self._carry_to(port), _HOST, own, limit=_PIECE_BYTES)
            for own, port in self._routes.items()
        ]
        self._is_up.set()
        await self._over.wait()
        for server in servers:
            server.close()
        self._drop_all()

    def _carry_to(self, port: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                there_reader, there_writer = await asyncio.open_connection(_HOST, port, limit=_PIECE_BYTES)
            except OSError:
                writer.transport.abort()
                return
            ends = {writer, there_writer}
            self._writers |= ends
            ways = [
                asyncio.create_task(self._pump(reader, there_writer, TO_DAEMON)),
                asyncio.create_task(self._pump(there_reader, writer, TO_ORCHESTRATOR)),
            ]
            # Once one end is gone, so is the connection. asyncio would print that the loop's end cancelled this.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            self._writers -= ends
            for end in ends:
                end.transport.abort()
            for way in ways:
                way.cancel()

        return carry

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(_PIECE_BYTES):
                await self._passes[way].wait()
                if self._cuts[SWALLOW, way]:
                    continue
                writer.write(piece)
                await writer.drain()

    def _begin(self, how: str, way: str) -> None:
        if how == DROP:
            self._drop_all()
            return
        for each in self._ways(way):
            self._cuts[how, each] += 1
            if how == STALL:
                self._passes[each].clear()

    def _end(self, how: str, way: str) -> None:
        if how == DROP:
            return
        for each in self._ways(way):
            self._cuts[how, each] -= 1
            if self._cuts[how, each]:
                continue
            if how == STALL:
                self._passes[each].set()
            else:
                self._drop_all()

    def _ways(self, way: str) -> list[str]:
        return [way] if way in self._passes else list(self._passes)

    def _drop_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
