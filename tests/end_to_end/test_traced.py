"""A trace of real stagings and real training tells what the clients were told."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

from typer.testing import CliRunner

import forebay
from forebay.cli.app import app

from ..cli.trace_rules import Event, check_trace, of_kind
from .fed_engine import Attached
from .fed_orchestrator import batch, keys, wait, with_client
from .processes import EVENT_S, StartDaemon

WAY = ("wait for a slot", "fill", "ready", "lent", "on device")


def trace_of(daemon: forebay.LocalDaemon, *arguments: str) -> Any:
    done = CliRunner().invoke(app, ["trace", "--endpoint", daemon.control_endpoint, "--out", "-", *arguments])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def spans_of(events: list[Event], key: str) -> dict[str, Event]:
    """Returns a key's spans in the rows of those who had it, by what it was at."""
    slots = {
        event["pid"] for event in events if event["name"] == "process_name" and event["args"]["name"] == "slots"
    }
    return {
        span["name"].removesuffix(f" {key}"): span
        for span in of_kind(events, "X")
        if span["args"]["key"] == key and span["pid"] not in slots
    }


def test_phases_agree_with_what_stage_and_the_steps_were_told(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(slots=2)
    called: dict[str, tuple[float, float, forebay.Staged]] = {}

    async def stage_all(client: forebay.StagingClient) -> None:
        for key in keys(4):
            began = time.monotonic()
            staged = await client.stage(batch(key), key=key, wait_s=EVENT_S, policy_version=3)
            assert isinstance(staged, forebay.Staged)
            called[key] = began, time.monotonic(), staged

    with Attached(daemon, cap=0) as engine:
        with_client(daemon, stage_all)
        engine.train(4)
        assert engine.trained == keys(4)
        for key in keys(4):
            assert wait(daemon, key) == "consumed"
        events = check_trace(trace_of(daemon))
    ends = []
    for key, (began, ended, staged) in called.items():
        spans = spans_of(events, key)
        assert set(spans) == set(WAY)
        assert {span["cat"] for span in spans.values()} == {"phase"}
        offered, published = spans["wait for a slot"]["ts"] / 1e6, spans["ready"]["ts"] / 1e6
        assert began <= offered + 1e-6 <= published + 1e-6 <= ended + 1e-6
        assert published - offered <= staged.seconds + 1e-6
        for before, after in itertools.pairwise(WAY):
            assert spans[before]["ts"] + spans[before]["dur"] == spans[after]["ts"]
        args = spans["on device"]["args"]
        assert (args["bytes"], args["policy_version"], args["outcome"]) == (staged.payload_bytes, 3, "consumed")
        ends.append(spans["on device"]["ts"] + spans["on device"]["dur"])
    assert ends == sorted(ends), "trained in the order in which they were staged"
    instants = [event["name"] for event in of_kind(events, "i")]
    assert instants[0] == "attach"
    free = [event["args"]["FREE"] for event in of_kind(events, "C") if event["name"] == "FREE slots"]
    assert free[-1] == 2


def test_a_daemon_that_adopts_a_pool_tells_of_it_without_a_made_up_beginning(start_daemon: StartDaemon) -> None:
    first = start_daemon(slots=2)

    async def stage_one(client: forebay.StagingClient) -> None:
        assert isinstance(await client.stage(batch("k0"), key="k0", wait_s=EVENT_S), forebay.Staged)

    with_client(first, stage_one)
    first.process.kill()
    first.process.wait()
    (ready,) = spans_of(check_trace(trace_of(start_daemon(slots=2))), "k0").values()
    assert ready["cat"] == "cut"
    assert set(ready["args"]) >= {"begin", "end"}
