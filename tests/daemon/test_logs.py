"""The log of real daemons, as text and as JSON."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay.daemon import Settings, local_daemon
from forebay.daemon.logs import LOG_FORMATS
from forebay.orchestrator_client import Refusal, StagingClient
from forebay.wire import Event, setting_of

PATIENCE_S = 60.0
KEY = 'a\n{"event": "forged"}\x1b[2J\u2028\u202e'


def log_of_a_life(folder: Path, **settings: Any) -> list[str]:
    """Has a daemon stage a key of hostile bytes, refuse another one, and stop; returns the lines of its log."""

    async def stage(address: str) -> None:
        async with StagingClient(address, timeout_s=PATIENCE_S) as client:
            await client.stage({"x": np.zeros(8)}, key=KEY)
            refused = await client.stage({"x": np.zeros(8)}, key=KEY + "2", wait_s=0)
            assert isinstance(refused, Refusal)

    sizes = {"slots": 1, "slot_initial_bytes": 1 << 16, "slot_max_bytes": 1 << 16}
    log_file = folder / "log"
    with local_daemon(log_file=log_file, log_level="debug", **sizes, **settings) as daemon:
        asyncio.run(stage(daemon.control_endpoint))
    return log_file.read_bytes().decode().split("\n")


def test_the_log_is_json_from_start_to_stop(tmp_path: Path) -> None:
    *lines, rest = log_of_a_life(tmp_path, log_format="json")
    assert rest == ""
    records = [json.loads(line) for line in lines]
    events = [record["event"] for record in records]
    assert (events[0], events[-1]) == ("serving", "stopped")
    assert set(events) - {None} <= set(Event)
    ready = [record for record in records if record["event"] == "ready"]
    assert [(record["key"], record["queue"], record["slot"]) for record in ready] == [(KEY, "train", 0)]
    [refused] = [record for record in records if record["event"] == "refuse"]
    assert (refused["level"], refused["logger"], refused["code"]) == ("WARNING", "forebay.daemon", "no_slot")


def test_the_log_is_text_unless_asked_otherwise(tmp_path: Path) -> None:
    *lines, rest = log_of_a_life(tmp_path)
    assert rest == ""
    begin = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING) forebay\.\w+ \w")
    assert [line for line in lines if not begin.match(line)] == []
    assert " INFO forebay.daemon serving control=ipc://" in lines[0]
    assert lines[-1].endswith(" INFO forebay.daemon stopped pool_kept=False")
    assert [line for line in lines if "\x1b" in line] == []


def test_the_settings_choices_are_the_formats_that_there_are() -> None:
    assert setting_of(Settings.__dataclass_fields__["log_format"]).choices == tuple(LOG_FORMATS)


@pytest.mark.parametrize("log_format", LOG_FORMATS)
def test_settings_take_each_format(log_format: str) -> None:
    assert Settings(log_format=log_format).log_format == log_format
