"""The page of the command line tells of every command."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from forebay.cli.app import COMMANDS


def test_every_command_has_its_help_on_the_page_in_80_columns() -> None:
    path = Path(__file__).parents[1] / "docs" / "cli_page.py"
    spec = importlib.util.spec_from_file_location("cli_page", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    told = dict(module.helps())
    assert {"forebay", *(f"forebay {name}" for name in COMMANDS), "forebay bench soak"} <= set(told)
    for command, words in told.items():
        assert words.startswith(f"Usage: {command} ")
        assert "--help" in words
        assert all(len(line) <= 80 for line in words.splitlines())
