"""What a trainer reads from its environment, and what is said about a wrong value."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from forebay.trainer.settings import StageMode, TrainerSettings, load_trainer_settings
from forebay.wire import SettingError, UsageError, setting_of, variable_of

STAGE_BATCH = "TUNIX_STAGE_BATCH"
MAX_DEVICE_BATCHES = "TUNIX_STAGE_MAX_DEVICE_BATCHES"


def complaint(caught: pytest.ExceptionInfo[SettingError]) -> str:
    message = str(caught.value)
    assert "\n" not in message, "one line"
    assert isinstance(caught.value, UsageError)
    return message


# --- right values ---


def test_without_anything_nothing_is_staged_and_one_micro_batch_may_wait_on_the_device() -> None:
    for settings in (load_trainer_settings(environment={}), TrainerSettings()):
        assert (settings.stage_batch, settings.mode, settings.max_device_batches) == ("off", StageMode.OFF, 1)


@pytest.mark.parametrize("mode", StageMode)
def test_every_mode_is_read_from_its_variable(mode: StageMode) -> None:
    settings = load_trainer_settings(environment={STAGE_BATCH: mode.value})
    assert (settings.stage_batch, settings.mode) == (mode.value, mode)
    assert settings.max_device_batches == 1


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("1", 1), ("2", 2), ("1024", 1024), ("1_000", 1000)])
def test_the_device_cap_is_read_from_its_variable(text: str, number: int) -> None:
    settings = load_trainer_settings(environment={MAX_DEVICE_BATCHES: text})
    assert settings.max_device_batches == number
    assert settings.mode is StageMode.OFF


def test_this_processs_own_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STAGE_BATCH, "serialize")
    monkeypatch.setenv(MAX_DEVICE_BATCHES, "3")
    assert load_trainer_settings() == TrainerSettings(stage_batch="serialize", max_device_batches=3)
    assert load_trainer_settings(environment={}) == TrainerSettings(), "an empty environment is one, too"


def test_the_variables_keep_the_names_that_launchers_know() -> None:
    variables = [variable_of(field) for field in dataclasses.fields(TrainerSettings)]
    assert variables[:2] == [STAGE_BATCH, MAX_DEVICE_BATCHES]
    assert all(variable.startswith("FOREBAY_") for variable in variables[2:])
    environment = {"FOREBAY_STAGE_BATCH": "stage", "FOREBAY_MAX_DEVICE_BATCHES": "5"}
    assert load_trainer_settings(environment=environment) == TrainerSettings()


@pytest.mark.parametrize("mode", StageMode)
def test_a_mode_may_be_passed_as_a_member_or_as_its_text(mode: StageMode) -> None:
    assert TrainerSettings(stage_batch=mode).mode is mode
    assert TrainerSettings(stage_batch=mode) == TrainerSettings(stage_batch=mode.value)


def test_every_setting_says_what_it_means_and_what_it_may_be() -> None:
    for field in dataclasses.fields(TrainerSettings):
        assert setting_of(field).meaning
        assert setting_of(field).limit or str(field.type) in ("str", "bool")


# --- wrong values ---


@pytest.mark.parametrize(
    "value",
    ["", " ", "\t", " stage", "stage ", "STAGE", "Off", "on", "1", "true", "none", "stage,serialize", "-1"],
)
def test_an_unknown_mode_is_one_line_that_names_setting_variable_value_and_choices(value: str) -> None:
    with pytest.raises(SettingError) as caught:
        load_trainer_settings(environment={STAGE_BATCH: value})
    shown = value.replace("\t", r"\t") or "an empty text"
    assert complaint(caught) == f"setting stage_batch ({STAGE_BATCH}); got {shown}; limit off, stage, serialize"


@pytest.mark.parametrize("value", ["", " ", "one", "1.0", "1e1", "0x1", "true", "unlimited", "inf", "--1", "1 0"])
def test_a_device_cap_that_is_no_integer_is_one_line_that_names_setting_variable_and_value(value: str) -> None:
    with pytest.raises(SettingError) as caught:
        load_trainer_settings(environment={MAX_DEVICE_BATCHES: value})
    assert (
        complaint(caught)
        == f"setting max_device_batches ({MAX_DEVICE_BATCHES}); got {value or 'an empty text'}; limit an integer"
    )


@pytest.mark.parametrize("value", [-1, 1025, -1024, 10**99])
def test_a_device_cap_out_of_range_is_one_line_that_names_setting_variable_value_and_range(value: int) -> None:
    wanted = f"setting max_device_batches ({MAX_DEVICE_BATCHES}); got {value}; limit 0 to 1024"
    with pytest.raises(SettingError) as caught:
        load_trainer_settings(environment={MAX_DEVICE_BATCHES: str(value)})
    assert complaint(caught) == wanted
    with pytest.raises(SettingError) as caught:
        TrainerSettings(max_device_batches=value)
    assert complaint(caught) == wanted


@pytest.mark.parametrize("variable", [STAGE_BATCH, MAX_DEVICE_BATCHES])
def test_a_huge_value_is_one_short_line(variable: str) -> None:
    with pytest.raises(SettingError) as caught:
        load_trainer_settings(environment={variable: "9" * 10_000})
    assert variable in complaint(caught)
    assert len(complaint(caught)) < 400


@pytest.mark.parametrize("value", [True, False, "1", "stage", 1.0, None, [1]])
def test_a_device_cap_of_another_type_is_refused_when_constructed_directly(value: Any) -> None:
    with pytest.raises(SettingError) as caught:
        TrainerSettings(max_device_batches=value)
    assert complaint(caught) == f"setting max_device_batches ({MAX_DEVICE_BATCHES}); got {value}; limit an integer"


@pytest.mark.parametrize("value", [True, False, 0, None, ["stage"], b"stage", "on"])
def test_a_mode_of_another_type_is_refused_when_constructed_directly(value: Any) -> None:
    with pytest.raises(SettingError) as caught:
        TrainerSettings(stage_batch=value)
    assert complaint(caught) == f"setting stage_batch ({STAGE_BATCH}); got {value}; limit off, stage, serialize"


def test_a_setting_cannot_be_changed_afterwards() -> None:
    settings = TrainerSettings()
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.max_device_batches = 2  # type: ignore[misc]
    assert settings.max_device_batches == 1


def test_a_data_endpoint_that_only_this_host_reaches_is_no_setting_beside_an_endpoint_that_all_do() -> None:
    words = r"setting worker_data_endpoint; .*as they reach worker_endpoint at tcp"
    with pytest.raises(SettingError, match=words):
        TrainerSettings(worker_endpoint="tcp://0.0.0.0:1", worker_data_endpoint="tcp://127.0.0.1:2", insecure=True)
