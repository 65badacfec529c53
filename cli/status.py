"""`forebay status`: what the daemon holds now."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from forebay.orchestrator_client import StagingClient
from forebay.wire import Status, printable


def status(
    endpoint: Annotated[
        str | None, typer.Option(help="the daemon's control endpoint; default this user's")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    timeout_s: Annotated[float, typer.Option(help="seconds to wait for the daemon", min=0)] = 10.0,
    client_key_file: Annotated[str | None, typer.Option(help="own secret key file")] = None,
    server_key_file: Annotated[str | None, typer.Option(help="the daemon's public key file")] = None,
) -> None:
    """Show the daemon's slots and queues."""
    found = asyncio.run(_ask(endpoint, timeout_s, client_key_file, server_key_file))
    if json:
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
        return
    console = Console(width=min(100, Console().width))
    console.print(
        f"daemon pid {found.peer.pid} on {found.peer.host}, version {found.software}, "
        f"up {found.uptime_s:.0f} s, {'draining' if found.draining else 'serving'}, pool {found.pool}, "
        f"{found.waiting_offers} offers wait",
        markup=False,
        highlight=False,
    )
    console.print(_slots(found))
    console.print(_queues(found))


async def _ask(
    endpoint: str | None, timeout_s: float, client_key_file: str | None, server_key_file: str | None
) -> Status:
    client = StagingClient(
        endpoint,
        name="forebay status",
        timeout_s=timeout_s,
        client_key_file=client_key_file,
        server_key_file=server_key_file,
    )
    async with client:
        return await client.status()


def _slots(found: Status) -> Table:
    table = Table("slot", "gen", "state", "MiB", "queue", "key", "version", "filled", "age s", "holder", box=None)
    for slot in found.slots:
        filled = f"{slot.received_bytes / slot.expected_bytes:.0%}" if slot.expected_bytes else ""
        table.add_row(
            *(str(slot.index), str(slot.generation), slot.state, f"{slot.slot_bytes / 2**20:.0f}"),
            *(_plain(slot.queue), _plain(slot.key), _version(slot.policy_version), filled),
            f"{slot.offered_s:.1f}" if slot.key else "",
            _plain(f"{slot.holder.name} {slot.holder.pid}") if slot.holder else "",
        )
    return table


def _queues(found: Status) -> Table:
    table = Table("queue", "version", "ready", "on device", "trainer", "attached s", box=None)
    for queue in found.queues:
        trainer = queue.trainer
        table.add_row(
            *(_plain(queue.name), _version(queue.policy_version), str(len(queue.ready))),
            _plain(", ".join(queue.on_device)),
            _plain(f"{trainer.name} {trainer.pid} on {trainer.host}") if trainer else "none",
            f"{queue.trainer_since_s:.0f}" if trainer else "",
        )
    return table


def _version(policy_version: int | None) -> str:
    return "" if policy_version is None else str(policy_version)


def _plain(text: str) -> str:
    """Shows a peer's words without letting them drive the terminal or the markup."""
    return printable(text).replace("[", r"\[")
