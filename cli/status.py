"""`forebay status`: what the daemon holds now."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from forebay.orchestrator_client import StagingClient
from forebay.wire import DataProtection, Status, printable

from .plain import json_line, plain


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
        sys.stdout.write(json_line(found))
        return
    console = Console(width=min(100, Console().width))
    console.print(_daemon(found))
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
        least_data_protection=DataProtection.NONE,  # it sends no bulk data
    )
    async with client:
        return await client.status()


def _daemon(found: Status) -> Text:
    return Text(
        f"daemon pid {found.peer.pid} on {printable(found.peer.host)}, version {printable(found.software)}, "
        f"up {found.uptime_s:.0f} s, {'draining' if found.draining else 'serving'}, "
        f"pool {printable(found.pool)}, {found.waiting_offers} offers wait"
    )


def _slots(found: Status) -> Table:
    columns = ("slot", "gen", "state", "MiB", "queue", "key", "version", "filled", "offered s", "holder")
    table = Table(*columns, box=None)
    for slot in found.slots:
        filled = f"{slot.received_bytes / slot.expected_bytes:.0%}" if slot.expected_bytes else ""
        table.add_row(
            *(str(slot.index), str(slot.generation), plain(slot.state), f"{slot.slot_bytes / 2**20:.0f}"),
            *(plain(slot.queue), plain(slot.key), _version(slot.policy_version), filled),
            f"{slot.offered_s:.1f}" if slot.key else "",
            plain(f"{slot.holder.name} {slot.holder.pid}") if slot.holder else "",
        )
    return table


def _queues(found: Status) -> Table:
    table = Table("queue", "version", "ready", "on device", "trainer", "attached s", box=None)
    for queue in found.queues:
        trainer = queue.trainer
        table.add_row(
            *(plain(queue.name), _version(queue.policy_version), str(len(queue.ready))),
            plain(", ".join(queue.on_device)),
            plain(f"{trainer.name} {trainer.pid} on {trainer.host}") if trainer else "none",
            f"{queue.trainer_since_s:.0f}" if trainer else "",
        )
    return table


def _version(policy_version: int | None) -> str:
    return "" if policy_version is None else str(policy_version)
