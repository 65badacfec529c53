"""What a unit file says, as a list of assignments in order."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
UNITS = (FOLDER / "forebay.service", FOLDER / "forebay@.service")


def assignments(unit: Path) -> list[tuple[str, str]]:
    """Returns name and value of every assignment."""
    lines = (line.strip() for line in unit.read_text().splitlines())
    pairs = [line.split("=", 1) for line in lines if line and line[0] not in "#;["]
    return [(name, value) for name, value in pairs]


def values(unit: Path, name: str) -> list[str]:
    """Returns the values of one name, in order."""
    return [value for found, value in assignments(unit) if found == name]


def environment(unit: Path) -> dict[str, str]:
    """Returns the variables that it sets."""
    return dict(value.split("=", 1) for value in values(unit, "Environment"))
