"""What a running daemon takes over of settings that changed, and what it leaves as it was."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.daemon import Settings
from forebay.daemon.actions import Level
from forebay.daemon.ledger_settings import LedgerSettings
from forebay.daemon.reloading import read_again
from forebay.daemon.settings import load_settings
from forebay.wire import Event, Message, RefusalCode, Refused, SettingError, setting_of

from .ledger_driver import Driver, only
from .ledger_peers import Sender, chunk_headers

FIELDS = {field.name: field for field in dataclasses.fields(Settings)}
RELOADABLE = sorted(name for name, field in FIELDS.items() if setting_of(field).reloadable)
FIXED = sorted(FIELDS.keys() - set(RELOADABLE))
OTHER: dict[str, Any] = {
    "http_endpoint": "127.0.0.1:1",
    "keep_pool": True,
    "log_level": "error",
    "log_format": "json",
    "control_endpoint": "ipc:///run/other/control",
    "data_endpoint": "ipc:///run/other/data",
    "trainer_endpoint": "ipc:///run/other/trainer",
    "pool": "/dev/shm/other",
    "key_file": "/etc/other",
    "authorised_file": "/etc/other",
    "data_protection": "authenticated",
    "insecure": True,
    "group": "other",
}
"""A value for each setting that is no number and not its default."""


def other_value(name: str) -> Any:
    default = FIELDS[name].default
    if name in OTHER:
        return OTHER[name]
    assert isinstance(default, int | float)
    return default + 1


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """Undoes what the settings of these tests do to the log."""
    log = logging.getLogger("forebay")
    before, handlers = log.level, log.handlers[:]
    yield
    log.setLevel(before)
    log.handlers[:] = handlers


# --- which settings ---


@pytest.mark.parametrize("name", RELOADABLE)
def test_a_reloadable_setting_is_taken_over_and_each_change_is_told(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "forebay")
    running, wanted = Settings(), Settings(**{name: other_value(name)})
    assert read_again(running, lambda: wanted) == (wanted, "settings read again, 1 changed")
    (record,) = caplog.records
    fields = {"setting": name, "before": getattr(running, name), "after": getattr(wanted, name)}
    assert (vars(record)["event"], vars(record)["fields"]) == (Event.SETTING_CHANGED, fields)


@pytest.mark.parametrize("name", FIXED)
def test_any_other_setting_stays_and_is_named(name: str, caplog: pytest.LogCaptureFixture) -> None:
    running = Settings()
    settings, words = read_again(running, lambda: dataclasses.replace(running, **{name: other_value(name)}))
    assert settings == running
    assert words == f"settings read again, 0 changed; a restart is needed for {name}"
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert vars(record)["fields"] == {"settings": [name]}


def test_one_warning_names_all_that_need_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    wanted = Settings(slots=7, max_leaves=7, drain_s=7.0)
    settings, _ = read_again(Settings(), lambda: wanted)
    assert settings == Settings(drain_s=7.0)
    (warning,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert warning == "restart_needed settings=slots,max_leaves"


def test_a_wrong_file_changes_nothing_and_is_one_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "forebay.toml"
    running = Settings(drain_s=3.0)
    for content in ("drain_s = 5.0\nslots = 0\n", "drain_s = 5.0\nslot = 1\n", "drain_s = "):
        file.write_text(content)
        caplog.clear()
        settings, words = read_again(running, lambda: load_settings(environment={}, file=file))
        assert settings is running
        assert words.startswith("settings not read again: ")
        (record,) = caplog.records
        assert (record.levelname, record.exc_info) == ("ERROR", None)
        assert "reload_refused reason=" in record.getMessage()


def test_the_log_has_its_new_level_from_then_on() -> None:
    settings, _ = read_again(Settings(), lambda: Settings(log_level="error"))
    assert not logging.getLogger("forebay.daemon").isEnabledFor(logging.WARNING)
    read_again(settings, lambda: Settings(log_level="debug"))
    assert logging.getLogger("forebay.daemon").isEnabledFor(logging.DEBUG)


def refuse() -> Settings:
    raise SettingError("setting slots")


def test_what_cannot_be_read_leaves_the_log_level_as_it_is() -> None:
    logging.getLogger("forebay").setLevel(logging.ERROR)
    read_again(Settings(), refuse)
    assert logging.getLogger("forebay").level == logging.ERROR


# --- what the ledger does with them ---


def change(driver: Driver, **settings: Any) -> None:
    changed = dataclasses.replace(driver.settings, **settings)
    driver.perform(driver.ledger.change(changed, driver.now))


def test_every_setting_of_the_ledger_that_may_change_is_reloadable() -> None:
    """And no other: what the ledger takes at its start alone would be said to have changed, and had not."""
    names, kept = (
        {field.name for field in dataclasses.fields(LedgerSettings)},
        {"remembered_keys", "remembered_events"},
    )
    assert names - set(RELOADABLE) == {"limits", "await_lease_s", "max_peers", "least_level", *kept}
    assert set(RELOADABLE) - names == {"keep_pool", "drain_s", "log_level", "log_format"}


def test_the_status_tells_the_new_bound_on_memory_and_nothing_of_memory_where_nobody_looks() -> None:
    driver = Driver(slots=2, max_private_bytes=5000)
    driver.ledger.memory(70)
    assert (driver.status().private_bytes, driver.status().max_private_bytes) == (70, 5000)
    change(driver, max_private_bytes=6000)
    assert (driver.status().private_bytes, driver.status().max_private_bytes) == (70, 6000)
    change(driver, max_private_bytes=0)
    assert (driver.status().private_bytes, driver.status().max_private_bytes) == (0, 0)


def test_the_ledger_logs_from_the_new_level_on() -> None:
    driver = Driver(slots=2, least_level=Level.WARNING)
    sender = Sender(driver)
    sender.stage("k")
    assert driver.logs == []
    change(driver, least_level=Level.DEBUG)
    sender.stage("k2")
    assert driver.logs


def test_what_is_older_than_a_new_limit_is_dropped_at_once() -> None:
    driver = Driver(slots=2, max_age_s=0.0)
    sender = Sender(driver)
    sender.stage("k")
    driver.pass_time(50.0)
    change(driver, max_age_s=60.0)
    assert driver.ready() == ("k",)
    change(driver, max_age_s=50.0)
    assert driver.ready() == ()
    assert driver.count("dropped_stale_age") == 1


def test_what_is_more_versions_behind_than_a_new_limit_is_dropped_at_once() -> None:
    driver = Driver(slots=2, max_versions_behind=-1)
    sender = Sender(driver)
    sender.stage("k", version=1)
    sender.advance(3)
    change(driver, max_versions_behind=2)
    assert driver.ready() == ("k",)
    change(driver, max_versions_behind=1)
    assert driver.ready() == ()


def test_a_sender_that_fills_has_the_new_lease_from_its_next_chunk_on() -> None:
    driver = Driver(slots=1, fill_lease_s=1000.0)
    sender = Sender(driver)
    grant = sender.grant("k")
    change(driver, fill_lease_s=2000.0)
    assert driver.chunk(chunk_headers(grant)[0]) is None
    driver.pass_time(1500.0)
    assert driver.states() == ["FILLING"]
    driver.pass_time(500.0)
    assert driver.states() == ["FREE"]


Ask = Callable[[Sender, int], list[Message]]
BOUNDS: dict[str, Ask] = {
    "max_queues": lambda sender, number: sender.offer("k", queue=f"queue {number}"),
    "max_waiting_offers": lambda sender, number: sender.offer(f"waiting {number}"),
    "max_waits": lambda sender, _: sender.wait_for("held"),
    "max_waits_per_peer": lambda sender, _: sender.wait_for("held"),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_a_bound_may_be_raised_and_lowered_and_lowering_it_ends_nothing(name: str) -> None:
    """The slot is taken all the time, by the one queue that there is at first."""
    driver = Driver(slots=1, **{name: 2})
    sender, ask = Sender(driver), BOUNDS[name]
    sender.stage("held")

    def is_refused(number: int) -> bool:
        return any(isinstance(answer, Refused) for answer in ask(sender, number))

    has_one = name == "max_queues"
    assert [is_refused(number) for number in range(3 - has_one)] == [False] * (2 - has_one) + [True]
    change(driver, **{name: 3})
    assert [is_refused(number) for number in (4, 5)] == [False, True]
    with driver.nothing_moves():
        change(driver, **{name: 1})
    assert is_refused(6)


def test_new_bytes_of_waiting_offers_hold_at_once() -> None:
    driver = Driver(slots=1)
    sender = Sender(driver)
    sender.stage("held")
    change(driver, max_waiting_bytes=1)
    assert only(sender.offer("k"), Refused).code is RefusalCode.TOO_MANY_OFFERS
    change(driver, max_waiting_bytes=1 << 20)
    assert sender.offer("k2") == []
