"""What an orchestrator reads from its environment, and what is said about a wrong value."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from forebay.daemon import Settings
from forebay.orchestrator_client.settings import OrchestratorSettings, load_orchestrator_settings
from forebay.trainer import TrainerSettings
from forebay.wire import SettingError, setting_of, variable_of

VARIABLE = "TUNIX_MAX_STAGED_BATCHES"


def test_without_anything_two_are_staged_for_ten_minutes_each_at_most() -> None:
    for settings in (load_orchestrator_settings(environment={}), OrchestratorSettings()):
        assert (settings.max_staged_batches, settings.stage_timeout_s) == (2, 600.0)


def test_the_variable_keeps_the_name_that_launchers_know() -> None:
    assert [variable_of(field) for field in dataclasses.fields(OrchestratorSettings)] == [
        VARIABLE,
        "FOREBAY_STAGE_TIMEOUT_S",
        "FOREBAY_CODEC",
        "FOREBAY_CONNECTIONS",
        "FOREBAY_CLIENT_KEY_FILE",
        "FOREBAY_SERVER_KEY_FILE",
        "FOREBAY_WORKER_KEY_FILE",
        "FOREBAY_LEAST_DATA_PROTECTION",
    ]
    assert load_orchestrator_settings(environment={"FOREBAY_MAX_STAGED_BATCHES": "5"}) == OrchestratorSettings()


@pytest.mark.parametrize("server", [Settings, TrainerSettings])
def test_no_variable_means_one_thing_to_a_client_and_another_to_a_server(server: Any) -> None:
    theirs = {variable_of(field) for field in dataclasses.fields(server)}
    assert theirs.isdisjoint(variable_of(field) for field in dataclasses.fields(OrchestratorSettings))


def test_what_is_given_wins_over_the_environment_and_none_is_not_given() -> None:
    environment = {VARIABLE: "3", "FOREBAY_STAGE_TIMEOUT_S": "7.5"}
    assert load_orchestrator_settings(environment=environment) == OrchestratorSettings(
        max_staged_batches=3, stage_timeout_s=7.5
    )
    given = {"max_staged_batches": 0, "stage_timeout_s": None}
    assert load_orchestrator_settings(given, environment=environment) == OrchestratorSettings(
        max_staged_batches=0, stage_timeout_s=7.5
    )


def test_this_processs_own_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1024")
    assert load_orchestrator_settings().max_staged_batches == 1024
    assert load_orchestrator_settings(environment={}) == OrchestratorSettings()


@pytest.mark.parametrize("value", [-1, 1025])
def test_a_number_out_of_range_is_one_line_that_names_setting_variable_value_and_range(value: int) -> None:
    with pytest.raises(SettingError) as caught:
        load_orchestrator_settings(environment={VARIABLE: str(value)})
    assert str(caught.value) == f"setting max_staged_batches ({VARIABLE}); got {value}; limit 0 to 1024"


@pytest.mark.parametrize("value", ["", "two", "1.5"])
def test_a_text_that_is_no_number_is_one_line_as_well(value: str) -> None:
    with pytest.raises(SettingError) as caught:
        load_orchestrator_settings(environment={VARIABLE: value})
    assert (
        str(caught.value)
        == f"setting max_staged_batches ({VARIABLE}); got {value or 'an empty text'}; limit an integer"
    )


@pytest.mark.parametrize("value", [0.0, -1.0, 1e9, float("nan"), True, "600"])
def test_a_wrong_timeout_is_refused(value: Any) -> None:
    with pytest.raises(SettingError, match="setting stage_timeout_s; got"):
        OrchestratorSettings(stage_timeout_s=value)


def test_every_setting_says_what_it_means_and_what_it_may_be() -> None:
    for field in dataclasses.fields(OrchestratorSettings):
        assert setting_of(field).meaning
        assert setting_of(field).limit or field.name.endswith("key_file")
