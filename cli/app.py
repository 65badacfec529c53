"""The command line's frame: one module a command, loaded when it is called, and errors in one line."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from forebay.wire.errors import ForebayError

COMMANDS = ("serve", "status", "demo", "bench", "keygen", "version")
"""Commands in the order in which help lists them; each is a function or a group, in the module of its name."""

EXIT_INTERRUPTED = 130


class _CommandsByName(TyperGroup):
    """Imports a command's module when it is called, so that no command pays for another."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f".{cmd_name}", __package__)
        command = getattr(module, cmd_name)
        if isinstance(command, typer.Typer):
            return typer.main.get_command(command)
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(cmd_name)(command)
        return typer.main.get_command(single)


app = typer.Typer(
    name="forebay",
    cls=_CommandsByName,
    help="Stage micro-batches in shared memory for a JAX trainer.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    """Stages micro-batches in shared memory for a JAX trainer."""


def main() -> int:
    """Runs the command line; returns the exit code.

    0 is success, 1 a failure, 2 a wrong use or setting, 3 a pool or endpoint that another process holds, 130 an
    interruption.
    """
    try:
        app(standalone_mode=True)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except ForebayError as error:
        from forebay.daemon.main import exit_code

        sys.stderr.write(f"forebay: {error}\n")
        return exit_code(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0
