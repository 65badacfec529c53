"""Reads the Containerfile: the few instructions that there are, and nothing else."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTAINERFILE = ROOT / "deploy/container/Containerfile"
_WORDS = (
    "ARG",
    "FROM",
    "ENV",
    "WORKDIR",
    "COPY",
    "RUN",
    "LABEL",
    "USER",
    "STOPSIGNAL",
    "HEALTHCHECK",
    "ENTRYPOINT",
)


@dataclasses.dataclass(slots=True)
class Stage:
    """What one FROM begins.

    Attributes:
        base: The image that it begins with.
        environment: From its ENV.
        copies: Words of its COPY.
        runs: Shell commands of its RUN, of which each ends the build if it fails.
        rest: Instruction -> its text.
    """

    base: str
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    copies: list[list[str]] = dataclasses.field(default_factory=list)
    runs: list[str] = dataclasses.field(default_factory=list)
    rest: dict[str, str] = dataclasses.field(default_factory=dict)

    def command(self, instruction: str) -> list[str]:
        """Returns the list that an instruction's text ends with: its form without a shell."""
        words: list[str] = json.loads(self.rest[instruction][self.rest[instruction].index("[") :])
        return words


def read_stages(text: str) -> list[Stage]:
    """Reads a Containerfile; an instruction that it does not know is an error."""
    stages: list[Stage] = []
    for line in _instructions(text):
        instruction, _, rest = line.partition(" ")
        assert instruction in _WORDS, f"the tests know no {instruction}"
        if instruction == "FROM":
            stages.append(Stage(rest))
        elif instruction != "ARG":
            _add(stages[-1], instruction, rest.strip())
    return stages


def _add(stage: Stage, instruction: str, rest: str) -> None:
    if instruction == "RUN":
        stage.runs.append(rest)
    elif instruction == "COPY":
        stage.copies.append(rest.split())
    elif instruction == "ENV":
        stage.environment |= dict(word.split("=", 1) for word in shlex.split(rest))
    else:
        assert instruction not in stage.rest, f"{instruction} twice: only the last would count"
        stage.rest[instruction] = rest


def _instructions(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [line for line in joined.splitlines() if line.strip()]


def context_files(ignore: str) -> list[str]:
    """Returns what an ignore file lets into the build: it must forbid all, and then name paths."""
    lines = [line for line in ignore.splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    assert lines[-1] == "**/__pycache__"
    named = lines[1:-1]
    assert all(line.startswith("!") for line in named)
    return [line.removeprefix("!") for line in named]
