"""The option `--json` of the commands that print one object."""

from __future__ import annotations

from typing import Annotated

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="print JSON, one line")]
