"""The command line's frame: one module a command, loaded when it is called, and errors in one line."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from forebay.wire import ExitCode, ForebayError, exit_code

from .streams import open_missing, say, with_output

COMMANDS = (
    *("serve", "doctor", "status", "slots", "queues", "queue", "why", "peek", "events", "top", "trace"),
    *("pause", "resume", "drain", "reset", "forget", "demo", "bench", "keygen", "version"),
)
"""Commands in the order in which help lists them; each is a function or a group, in the module of its name."""


class _CommandsByName(TyperGroup):
    """Imports a command's module when it is called, so that no command pays for another."""

    _only_names = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        if self._only_names:
            return TyperCommand(cmd_name)
        module = importlib.import_module(f".{cmd_name}", __package__)
        command = getattr(module, cmd_name)
        if isinstance(command, typer.Typer):
            return typer.main.get_command(command)
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(cmd_name)(command)
        return typer.main.get_command(single)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Completes names without a line of help for each, which would import all commands."""
        self._only_names = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._only_names = False


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
    """Runs the command line; returns the exit code, one of `ExitCode`."""
    open_missing()
    return with_output(_run)


def _run() -> int:
    try:
        app(standalone_mode=True)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except ForebayError as error:
        say(str(error))
        return exit_code(error)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return ExitCode.OK
