"""Metrics as Prometheus reads them, and what peers' names may do to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from forebay.daemon.figures import Figures, QueueFigures
from forebay.daemon.http_answers import answer_to
from forebay.daemon.loop_questions import LoopQuestions
from forebay.daemon.metric_table import METRICS, OTHER_QUEUES, SHOWN_QUEUES
from forebay.daemon.metrics_text import metrics_text
from forebay.daemon.pages import DaemonPages
from forebay.daemon.samples import ProcessFigures, values_of
from forebay.daemon.server_sockets import Headcount
from forebay.sockets import Mailbox

from .ledger_driver import Driver
from .ledger_peers import Sender, Trainer

PROCESS = ProcessFigures(
    version="1.2", protocol=4, started_at=1e9, private_bytes=7, max_private_bytes=8, answer_s=0.5
)
COUNTS = [Headcount("control", 3, 1), Headcount("data", 2, 0)]
OPENMETRICS = "application/openmetrics-text"


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=4)


def figures_with(driver: Driver, *queues: QueueFigures) -> Figures:
    return dataclasses.replace(driver.ledger.figures(driver.now), queues=queues)


def text_of(figures: Figures | None) -> str:
    return metrics_text(values_of(PROCESS, figures, COUNTS), "")[0].decode()


def samples(families: Iterable[Any]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, "a series is there twice"
            found[key] = sample.value
    return found


def value(text: str, name: str, **labels: str) -> float:
    return samples(read_text(text))[name, tuple(sorted(labels.items()))]


def test_every_metric_of_the_table_is_told_with_its_labels(driver: Driver, sender: Sender) -> None:
    sender.stage("k")
    told = {family.name: family for family in read_text(text_of(driver.ledger.figures(driver.now)))}
    assert list(told) == [metric.name.removesuffix("_total") for metric in METRICS]
    for metric in METRICS:
        family = told[metric.name.removesuffix("_total")]
        assert family.type == metric.kind
        assert family.documentation == metric.meaning
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == set(metric.labels)


def test_both_formats_say_the_same(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("k")
    trainer.lends(1)
    values = values_of(PROCESS, driver.ledger.figures(driver.now), COUNTS)
    (plain, plain_type), (openly, open_type) = metrics_text(values, ""), metrics_text(values, OPENMETRICS)
    assert plain_type.startswith("text/plain; version=0.0.4")
    assert open_type.startswith(f"{OPENMETRICS}; version=1.0.0")
    assert samples(read_text(plain.decode())) == samples(read_openmetrics(openly.decode()))


@pytest.mark.parametrize(
    ("accept", "is_open"),
    [
        ("", False),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", False),
        ("application/openmetrics-text;version=1.0.0;q=0.6,text/plain;q=0.3", True),
        ("application/openmetrics-text; version=x\r\n Evil: yes", True),
        ("application/openmetrics-text; version=999", True),
        (",;,=;;", False),
    ],
)
def test_the_client_chooses_the_format_and_no_word_of_it_comes_back(accept: str, is_open: bool) -> None:
    _, content_type = metrics_text(values_of(PROCESS, None), accept)
    assert content_type.startswith(OPENMETRICS) is is_open
    assert content_type == metrics_text(values_of(PROCESS, None), OPENMETRICS if is_open else "")[1]


def test_a_histograms_buckets_grow_up_to_its_count(driver: Driver, sender: Sender) -> None:
    for key in ("a", "b"):
        grant = sender.grant(key)
        driver.now += 0.3
        sender.fill(grant)
    text = text_of(driver.ledger.figures(driver.now))
    assert value(text, "forebay_stage_seconds_bucket", le="0.25") == 0
    assert value(text, "forebay_stage_seconds_bucket", le="0.5") == 2
    assert value(text, "forebay_stage_seconds_bucket", le="+Inf") == 2
    assert value(text, "forebay_stage_seconds_count") == 2
    assert value(text, "forebay_stage_seconds_sum") == pytest.approx(0.6)


def test_connections_are_told_by_endpoint(driver: Driver) -> None:
    text = text_of(driver.ledger.figures(driver.now))
    assert value(text, "forebay_connections", endpoint="control") == 3
    assert value(text, "forebay_connections_refused_total", endpoint="control") == 1


HOSTILE = ['a"} 1\nforebay_evil 1\n#', "\\", "\x1b[2J", "\n", " ", "ü\u2028", OTHER_QUEUES, "a" * 10_000]


def test_no_name_of_a_queue_breaks_the_text_or_grows_it(driver: Driver) -> None:
    queues = [QueueFigures(name, 1, 0, True, 2.0) for name in HOSTILE]
    text = text_of(figures_with(driver, *queues))
    found = [key for key in samples(read_text(text)) if key[0] == "forebay_queue_ready"]
    assert len(found) == len(HOSTILE)
    assert "forebay_evil" not in {name for name, _ in samples(read_text(text))}
    assert "\x1b" not in text
    assert len(text) < 100_000


def test_of_many_queues_some_are_shown_and_the_others_are_one(driver: Driver) -> None:
    queues = [QueueFigures(f"q{number}", 1, 2, number == 0, float(number)) for number in range(1000)]
    text = text_of(figures_with(driver, *queues))
    shown = [dict(labels)["queue"] for name, labels in samples(read_text(text)) if name == "forebay_queue_ready"]
    assert shown == [*(f"q{number}" for number in range(SHOWN_QUEUES)), OTHER_QUEUES]
    assert value(text, "forebay_queue_ready", queue=OTHER_QUEUES) == 1000 - SHOWN_QUEUES
    assert value(text, "forebay_queue_on_device", queue=OTHER_QUEUES) == 2 * (1000 - SHOWN_QUEUES)
    assert value(text, "forebay_queue_trainer_waiting_seconds", queue=OTHER_QUEUES) == 999.0


def test_two_queues_whose_names_look_the_same_are_one(driver: Driver) -> None:
    pair = [QueueFigures("x" * 1000 + middle + "x" * 1000, 1, 0, False, 0.0) for middle in "ab"]
    text = text_of(figures_with(driver, *pair))
    assert sorted(samples(read_text(text)).items())


def test_a_loop_that_hangs_is_told_by_every_page(driver: Driver) -> None:
    mailbox = Mailbox()  # that nobody empties
    try:
        questions = LoopQuestions(mailbox, answer_s=0.01)
        pages = DaemonPages(questions, driver.ledger, None, max_private_bytes=lambda: 8).by_path()  # type: ignore[arg-type]
        for path in ("/healthz", "/readyz"):
            answer = answer_to(f"GET {path} HTTP/1.0\r\n\r\n".encode(), pages)
            assert answer.startswith(b"HTTP/1.0 503 ")
            assert b"loop did not answer within 0.01 s" in answer
        head, _, body = answer_to(b"GET /metrics HTTP/1.0\r\n\r\n", pages).partition(b"\r\n\r\n")
    finally:
        mailbox.close()
    assert head.startswith(b"HTTP/1.0 200 ")
    assert value(body.decode(), "forebay_loop_answered") == 0
    assert value(body.decode(), "forebay_private_memory_bytes") > 0
    assert b"forebay_slots" not in body
