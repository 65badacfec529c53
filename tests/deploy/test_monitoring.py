"""Alert rules and dashboard: strict, whole, and about metrics that a real daemon has."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from forebay import StagingClient, local_daemon
from forebay.daemon.metric_table import METRICS

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
DASHBOARD = DEPLOY / "grafana" / "forebay.json"

_PATIENCE_S = 60.0
_BY_SCRAPE = {"job", "instance", "le"}
"""Labels that Prometheus adds, or that a histogram has."""

_DURATION = re.compile(r"[1-9][0-9]*[smh]")
_SELECTOR = re.compile(r"\b(forebay_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'\s*(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"\s*(?:,|$)')
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")
_TEMPLATE = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")

Series = dict[str, list[dict[str, str]]]


@pytest.fixture(scope="module")
def series() -> Series:
    """Name -> the labels of each series, of a daemon that holds a micro-batch."""

    async def stage(endpoint: str) -> None:
        async with StagingClient(endpoint) as client:
            await client.stage({"x": np.arange(4)}, key="k", timeout_s=_PATIENCE_S)

    found: Series = {}
    with local_daemon(http_endpoint="127.0.0.1:0", slots=1, slot_initial_bytes=1 << 20) as daemon:
        asyncio.run(stage(daemon.control_endpoint))
        connection = http.client.HTTPConnection(daemon.ready.http_endpoint, timeout=_PATIENCE_S)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({name for name, _ in pairs}) == len(pairs), f"a name is there twice: {pairs}"
    return dict(pairs)


def alert_rules() -> list[dict[str, Any]]:
    class Strict(yaml.SafeLoader):  # type: ignore[misc]
        pass

    def mapping(loader: Any, node: Any) -> dict[str, Any]:
        return _no_twice(
            [(loader.construct_object(k), loader.construct_object(v, deep=True)) for k, v in node.value]
        )

    Strict.add_constructor("tag:yaml.org,2002:map", mapping)
    groups = yaml.load(ALERTS.read_text(), Strict)
    assert groups.keys() == {"groups"}
    [group] = groups["groups"]
    assert group.keys() == {"name", "rules"}
    return list(group["rules"])


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(), object_pairs_hook=_no_twice)
    return found


def targets() -> Iterator[dict[str, Any]]:
    for panel in dashboard()["panels"]:
        yield from panel.get("targets", ())


def expressions() -> list[str]:
    return [rule["expr"] for rule in alert_rules()] + [target["expr"] for target in targets()]


def check(expression: str, series: Series) -> set[str]:
    """Asserts that an expression asks for what is there; returns the labels that it may speak of."""
    assert all(expression.count(a) == expression.count(b) for a, b in ("()", "{}", "[]")), expression
    labels = set(_BY_SCRAPE)
    for name, matchers in _SELECTOR.findall(expression):
        assert name in series, f"{expression}: a daemon has no {name}"
        labels |= {label for each in series[name] for label in each}
        assert _MATCHER.sub("", matchers).strip() == "", f"{expression}: {matchers}"
        for label, operator, value in _MATCHER.findall(matchers):
            if label in _BY_SCRAPE:
                continue
            values = {each[label] for each in series[name]}
            wanted = re.compile(value if "~" in operator else re.escape(value))
            assert any(map(wanted.fullmatch, values)), f"{expression}: no {label} is {value}, but {values}"
            for word in value.split("|"):
                assert any(map(re.compile(word).fullmatch, values)), f"{expression}: no {label} is {word}"
    for group in _GROUPING.findall(expression):
        assert {label.strip() for label in group.split(",")} <= labels, expression
    return labels


def test_every_expression_asks_for_metrics_labels_and_values_that_a_daemon_has(series: Series) -> None:
    asked = expressions()
    assert len(asked) > 40
    for expression in asked:
        assert "forebay_" in expression or expression.startswith('up{job="forebay"}')
        check(expression, series)


@pytest.mark.parametrize(
    "expression",
    [
        "forebay_slot",
        'forebay_slots{state="free"}',
        'forebay_slots{status="FREE"}',
        "sum by (queue) (forebay_slots)",
        'forebay_refusals_total{code!~"no_slot|no_such"}',
        "sum(forebay_slots",
    ],
)
def test_the_check_finds_what_is_not_there(expression: str, series: Series) -> None:
    with pytest.raises((AssertionError, KeyError)):
        check(expression, series)


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    rules = alert_rules()
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert re.fullmatch(r"Forebay[A-Za-z]+", rule["alert"])
        assert _DURATION.fullmatch(rule.get("for", "1m"))
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"].keys() == {"summary", "description"}
        assert len(rule["annotations"]["description"]) > 80
        assert {"instance"} <= set(_TEMPLATE.findall(rule["annotations"]["summary"])), rule["alert"]


def test_words_name_only_labels_that_their_expressions_have(series: Series) -> None:
    told = [(rule["expr"], rule["annotations"]["summary"]) for rule in alert_rules()]
    told += [(target["expr"], target["legendFormat"]) for target in targets()]
    for expression, words in told:
        named = set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)", words)) - {"value"}
        assert named <= check(expression, series), (expression, words)
        for group in re.findall(r"\bby \(([^)]*)\)", expression):
            assert named <= {label.strip() for label in group.split(",")}, (expression, words)


@pytest.mark.parametrize(
    "about",
    [
        "up{",
        "loop_answered",
        "trainer_wait",
        "FREE",
        "QUARANTINED",
        "refusals",
        "stale",
        "handshake",
        "private_memory",
    ],
)
def test_there_is_an_alert_for_each_thing_that_an_operator_has_to_know(about: str) -> None:
    assert any(about in rule["expr"] for rule in alert_rules())


@pytest.mark.parametrize("code", ["unknown_key", "hello_first"])
def test_what_inspectors_look_for_in_vain_raises_no_alert(code: str) -> None:
    [rule] = [rule for rule in alert_rules() if rule["alert"] == "ForebayRefusalsRise"]
    [(label, operator, value)] = _MATCHER.findall(re.findall(r"\{([^}]*)\}", rule["expr"])[0])
    assert (label, operator) == ("code", "!~")
    assert re.fullmatch(value, code)
    assert not re.fullmatch(value, "no_slot")


def test_a_stopped_process_is_told_where_nothing_answers_and_not_where_its_loop_alone_does_not() -> None:
    told = {rule["alert"]: rule["annotations"]["description"] for rule in alert_rules()}
    assert "stopped" in told["ForebayDaemonDown"]
    assert "stopped" not in told["ForebayLoopHangs"]


def test_the_dashboard_shows_every_metric() -> None:
    shown = " ".join(target["expr"] for target in targets())
    missing = [metric.name for metric in METRICS if not re.search(rf"\b{metric.name}(_bucket|_sum)?\b", shown)]
    assert missing == []


def test_panels_lie_beside_each_other_and_ask_the_chosen_prometheus() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["title"]
        for target in panel.get("targets", ()):
            assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert '{job=~"$job",instance=~"$instance"' in target["expr"]
    variables = [variable["name"] for variable in dashboard()["templating"]["list"]]
    assert variables == ["datasource", "job", "instance"]
    for variable in dashboard()["templating"]["list"][1:]:
        assert "forebay_build_info" in variable["query"]["query"]
