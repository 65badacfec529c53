"""What a real daemon tells over HTTP of what it holds and of what happened."""

from __future__ import annotations

import json

import msgspec

from forebay.wire import Events, Status

from .fed_orchestrator import stage, status
from .http_looks import look
from .processes import StartDaemon

ANY = "127.0.0.1:0"
AGES = ("uptime_s", "peers", "slots", "private_bytes", "id")


def test_the_state_is_what_a_client_is_told(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(slots=2, http_endpoint=ANY)
    stage(daemon, "k0", "k1")
    told = status(daemon)
    seen = look(daemon, "/state.json")
    assert (seen.status, seen.content_type) == (200, "application/json")
    shown = msgspec.convert(json.loads(seen.body), Status, strict=False)
    unaged = dict.fromkeys(AGES, 0)
    assert msgspec.structs.replace(shown, **unaged) == msgspec.structs.replace(told, **unaged)
    assert [(slot.state, slot.key) for slot in shown.slots] == [(slot.state, slot.key) for slot in told.slots]


def test_events_and_timeline_tell_of_what_was_staged(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(slots=2, http_endpoint=ANY)
    stage(daemon, "k0")
    first = msgspec.convert(json.loads(look(daemon, "/events.json?key=k0").body), Events, strict=False)
    assert [moment.event for moment in first.moments] == ["offered", "filling", "ready"]
    stage(daemon, "k1")
    later = msgspec.convert(
        json.loads(look(daemon, f"/events.json?after={first.last}").body), Events, strict=False
    )
    assert {moment.key for moment in later.moments} == {"k1"}
    (k0, _) = json.loads(look(daemon, "/timeline.json").body)["lives"]
    assert [span["phase"] for span in k0["spans"]][-1] == "ready"


def test_another_run_of_the_daemon_has_another_epoch_everywhere(start_daemon: StartDaemon) -> None:
    def epochs() -> set[str]:
        paths = ("/state.json", "/events.json", "/timeline.json")
        return {json.loads(look(daemon, path).body)["epoch"] for path in paths}

    daemon = start_daemon(http_endpoint=ANY)
    (first,) = epochs()
    daemon.close()
    daemon = start_daemon(http_endpoint=ANY)
    (second,) = epochs()
    assert first != second
