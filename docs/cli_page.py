"""Makes the reference of the command line from what each command says of itself with --help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import typer

from forebay.cli.app import app

_COLUMNS: Final = 80


def cli_page() -> str:
    """The whole reference: a heading for each command, and its help."""
    return "".join(f"\n## `{path}`\n\n```text\n{words}\n```\n" for path, words in helps())


def helps() -> Iterator[tuple[str, str]]:
    """Yields each command as one calls it, and its help as it stands in 80 columns."""
    yield from _helps(typer.main.get_command(app), "forebay", None)


def _helps(command: Any, name: str, parent: Any) -> Iterator[tuple[str, str]]:
    context = command.context_class(command, info_name=name, parent=parent, terminal_width=_COLUMNS - 2)
    yield context.command_path, command.get_help(context).rstrip()
    for child in getattr(command, "list_commands", lambda _: [])(context):
        yield from _helps(command.get_command(context, child), child, context)
