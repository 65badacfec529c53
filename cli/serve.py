"""`forebay serve`: its options are made from the settings, so that the two cannot differ."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from forebay.daemon import Settings, load_settings, start_logging
from forebay.daemon import serve as run_daemon
from forebay.wire import setting_of

_KINDS = {"str": str, "int": int, "float": float, "bool": bool}


def serve(config: Path | None = None, **flags: Any) -> None:
    """Run the daemon until SIGTERM. SIGHUP has it read its settings again.

    Flags win over the environment (FOREBAY_SLOTS and so on), the environment over a TOML file.
    """
    settings = load_settings(flags, file=config)
    start_logging(settings.log_level, settings.log_format)
    run_daemon(settings, read=lambda: load_settings(flags, file=config))


def _signature() -> inspect.Signature:
    config = inspect.Parameter(
        "config",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Path | None, typer.Option(help="TOML file of settings; FOREBAY_CONFIG")],
    )
    return inspect.Signature([config, *(_parameter(field) for field in dataclasses.fields(Settings))])


def _parameter(field: dataclasses.Field[Any]) -> inspect.Parameter:
    kind = _KINDS[str(field.type)]
    option = typer.Option(help=_help(field), show_default=False)
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def _help(field: dataclasses.Field[Any]) -> str:
    known = setting_of(field)
    meaning = f"{known.meaning}: {known.limit}" if known.choices else known.meaning
    # Spelled as typer does it elsewhere; given to it, it would put brackets around this default, and as no default
    # at all, since a flag that is not given must not win over the environment.
    limits = "" if known.low is None else f"; {known.low}<=x<={known.high}"
    return f"{meaning}  [default: {_default(field)}{limits}]"


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return str(field.default)
    return "this user's"


serve.__signature__ = _signature()  # type: ignore[attr-defined]
serve.__annotations__ = {
    name: parameter.annotation
    for name, parameter in serve.__signature__.parameters.items()  # type: ignore[attr-defined]
}
