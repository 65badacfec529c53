"""Where settings come from, and what is said about a wrong one."""

from __future__ import annotations

import dataclasses
import inspect
import os
from pathlib import Path
from typing import Any

import pytest

from forebay.cli.serve import serve
from forebay.daemon import Settings, load_settings
from forebay.shm import default_endpoint, default_pool
from forebay.wire import Limits, Setting, SettingError, UsageError

FIELDS = {field.name: field for field in dataclasses.fields(Settings)}
NAMES = sorted(FIELDS)
RANGED = {name: setting for name in NAMES if (setting := FIELDS[name].metadata["setting"]).low is not None}


def load(
    tmp_path: Path | None = None,
    *,
    flags: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
    file: str | None = None,
) -> Settings:
    if file is None:
        return load_settings(flags, environment=environment or {})
    assert tmp_path is not None
    path = tmp_path / "forebay.toml"
    path.write_text(file)
    return load_settings(flags, environment=environment or {}, file=path)


def complaint(caught: pytest.ExceptionInfo[SettingError]) -> str:
    message = str(caught.value)
    assert "\n" not in message, "one line"
    assert isinstance(caught.value, UsageError)
    return message


# --- precedence ---


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = "slots = 1\nmax_leaves = 1\nmax_depth = 1\n"
    environment = {"FOREBAY_SLOTS": "2", "FOREBAY_MAX_LEAVES": "2"}
    settings = load(tmp_path, flags={"slots": 3, "max_depth": None}, environment=environment, file=file)
    assert (settings.slots, settings.max_leaves, settings.max_depth) == (3, 2, 1)
    assert settings.chunk_bytes == FIELDS["chunk_bytes"].default


def test_without_anything_every_setting_has_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONTROL", "DATA", "TRAINER"):
        monkeypatch.delenv(f"FOREBAY_{name}_ENDPOINT", raising=False)
    settings = load()
    for name, field in FIELDS.items():
        if field.default is not dataclasses.MISSING:
            assert getattr(settings, name) == field.default, name
    assert settings.control_endpoint == default_endpoint("control")
    assert settings.pool == str(default_pool())


def test_a_flag_of_false_or_zero_is_given() -> None:
    environment = {"FOREBAY_KEEP_POOL": "true", "FOREBAY_DRAIN_S": "5"}
    settings = load(flags={"keep_pool": False, "drain_s": 0.0}, environment=environment)
    assert (settings.keep_pool, settings.drain_s) == (False, 0.0)


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    path.write_text("slots = 7\n")
    assert load_settings(environment={"FOREBAY_CONFIG": str(path)}).slots == 7
    other = tmp_path / "other.toml"
    other.write_text("slots = 8\n")
    assert load_settings(environment={"FOREBAY_CONFIG": str(path)}, file=other).slots == 8


def test_this_processs_own_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_SLOTS", "9")
    assert load_settings().slots == 9


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_is_read_from_its_variable(name: str) -> None:
    values = {"bool": "true", "int": "8192", "float": "2.5", "str": "tcp://*:1"}
    special = {
        "log_level": "debug",
        "log_format": "json",
        "data_protection": "authenticated",
        "http_endpoint": "[::1]:1",
        "data_endpoint": "tcp://127.0.0.1:1",
        "control_endpoint": "ipc:///run/control",
        "trainer_endpoint": "ipc:///run/trainer",
        "pool": "/dev/shm/pool",
        "slots": "9",
        "max_depth": "9",
        "receive_threads": "9",
        "io_threads": "9",
        "receive_chunks": "9",
        "slot_max_bytes": "99999999",
    }
    value = special.get(name, values[str(FIELDS[name].type)])
    settings = load(environment={f"FOREBAY_{name.upper()}": value})
    assert str(getattr(settings, name)).lower() == value
    changed = {other for other in NAMES if getattr(settings, other) != getattr(load(), other)}
    assert changed == {name}


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_says_what_it_means(name: str) -> None:
    setting = FIELDS[name].metadata["setting"]
    assert isinstance(setting, Setting)
    assert setting.meaning
    assert (setting.low is None) is (setting.high is None)
    if str(FIELDS[name].type) in ("int", "float"):
        assert setting.low is not None, "a number has a range"


# --- types ---


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("true", True), ("Yes", True), ("on", True), ("0", False), ("FALSE", False), ("no", False)],
)
def test_a_switch_has_several_spellings(text: str, value: bool) -> None:
    assert load(environment={"FOREBAY_KEEP_POOL": text}).keep_pool is value


def test_numbers_may_have_underscores_as_in_toml() -> None:
    assert load(environment={"FOREBAY_SLOT_INITIAL_BYTES": "1_048_576"}).slot_initial_bytes == 1 << 20


def test_a_file_has_the_types_of_toml(tmp_path: Path) -> None:
    file = 'keep_pool = true\nslots = 2\nfill_lease_s = 3\nlog_level = "error"\nslot_max_bytes = 1_000_000_000\n'
    settings = load(tmp_path, file=file)
    assert (settings.keep_pool, settings.slots, settings.fill_lease_s) == (True, 2, 3.0)
    assert (settings.log_level, settings.slot_max_bytes) == ("error", 1_000_000_000)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("slots", "four", "an integer"),
        ("slots", "4.5", "an integer"),
        ("slots", "0x10", "an integer"),
        ("fill_lease_s", "soon", "a number"),
        ("keep_pool", "perhaps", "true or false"),
        ("keep_pool", "2", "true or false"),
    ],
)
def test_a_wrong_type_is_one_line_that_names_setting_value_and_type(name: str, value: str, wanted: str) -> None:
    with pytest.raises(SettingError) as caught:
        load(environment={f"FOREBAY_{name.upper()}": value})
    message = complaint(caught)
    assert message == f"setting {name}; got {value}; limit {wanted}"


@pytest.mark.parametrize(("name", "wanted"), [("slots", "an integer"), ("fill_lease_s", "a number")])
def test_a_variable_that_is_set_to_nothing_is_named(name: str, wanted: str) -> None:
    variable = f"FOREBAY_{name.upper()}"
    with pytest.raises(SettingError) as caught:
        load(environment={variable: ""})
    assert complaint(caught) == f"setting {name} ({variable}); got an empty text; limit {wanted}"


@pytest.mark.parametrize("name", ["control_endpoint", "data_endpoint"])
@pytest.mark.parametrize("address", ["foo", "inproc://x", "tcp", "/tmp/x.sock"])
def test_what_is_no_address_is_refused_before_anything_is_locked(name: str, address: str) -> None:
    with pytest.raises(SettingError) as caught:
        load(flags={name: address})
    assert complaint(caught) == f"setting {name}; got {address}; limit an ipc:// or tcp:// address"


def test_one_address_for_two_sockets_is_refused() -> None:
    with pytest.raises(SettingError, match="limit three different addresses"):
        load(flags={"control_endpoint": "ipc:///run/one", "trainer_endpoint": "ipc:///run/one"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("slots", value) for value in ("true", "4.5", "[4]", "{a = 1}", "1979-05-27")),
        *(("fill_lease_s", value) for value in ("[1.0]", "{a = 1}", "1979-05-27", "true")),
        *(("keep_pool", value) for value in ("[true]", "2", "1.5")),
        *(("pool", value) for value in ("[1]", "{a = 1}", "4", "false")),
    ],
)
def test_a_wrong_type_in_the_file_is_a_complaint_too(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(SettingError) as caught:
        load(tmp_path, file=f"{name} = {value}\n")
    assert f"setting {name}; got " in complaint(caught)


# --- ranges ---


@pytest.mark.parametrize("name", RANGED)
def test_both_ends_of_a_range_are_inside_it(name: str) -> None:
    setting = RANGED[name]
    extra = {"slot_max_bytes": 1 << 40} if name == "slot_initial_bytes" else {"slot_initial_bytes": 4096}
    for value in (setting.low, setting.high):
        assert getattr(load(flags={**extra, name: value}), name) == value


@pytest.mark.parametrize("name", RANGED)
def test_a_value_beyond_its_range_is_one_line_that_names_setting_value_and_range(name: str) -> None:
    setting = RANGED[name]
    assert setting.low is not None
    assert setting.high is not None
    for value in (setting.low - 1, setting.high + 1):
        with pytest.raises(SettingError) as caught:
            load(flags={name: value})
        message = complaint(caught)
        assert message.startswith(f"setting {name}; got {value}")
        assert message.endswith(f"limit {setting.low} to {setting.high}"), "exact numbers, to be typed in again"


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_float_that_is_no_number_is_out_of_range(value: str) -> None:
    with pytest.raises(SettingError) as caught:
        load(environment={"FOREBAY_DRAIN_S": value})
    assert "setting drain_s" in complaint(caught)


def test_an_integer_of_ten_thousand_digits_is_one_short_line() -> None:
    with pytest.raises(SettingError) as caught:
        load(environment={"FOREBAY_SLOTS": "9" * 10_000})
    assert len(complaint(caught)) < 400


def test_a_slot_cannot_begin_larger_than_it_may_grow() -> None:
    with pytest.raises(SettingError) as caught:
        load(flags={"slot_initial_bytes": 8192, "slot_max_bytes": 4096})
    assert complaint(caught) == "setting slot_initial_bytes; got 8192; limit at most slot_max_bytes, 4096"


def test_an_unknown_log_level_is_a_complaint_that_lists_them() -> None:
    with pytest.raises(SettingError) as caught:
        load(flags={"log_level": "verbose"})
    assert complaint(caught) == "setting log_level; got verbose; limit debug, info, warning, error"


def test_a_wrong_value_from_the_file_is_named_like_any_other(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        load(tmp_path, file="slots = 0\n")
    assert complaint(caught) == "setting slots; got 0; limit 1 to 1024"


# --- the file ---


def test_an_unknown_name_in_the_file_is_a_complaint_that_names_file_and_name(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        load(tmp_path, file="slots = 2\nslot = 4\nFOREBAY_SLOTS = 3\n")
    message = complaint(caught)
    for word in ("forebay.toml", "'slot'", "'FOREBAY_SLOTS'"):
        assert word in message


@pytest.mark.parametrize("content", [b"slots = ", b"\xff\xfe\x00", b"slots = 2\nslots = 3\n"])
def test_a_file_that_is_no_toml_is_a_complaint_that_names_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(SettingError) as caught:
        load_settings(environment={}, file=path)
    assert str(path) in complaint(caught)


def test_a_file_that_is_missing_or_a_folder_or_a_pipe_is_a_complaint_that_names_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path / "missing.toml", tmp_path, pipe):
        with pytest.raises(SettingError) as caught:
            load_settings(environment={"FOREBAY_CONFIG": str(path)})
        assert str(path) in complaint(caught)


# --- what others are told ---


def test_senders_are_told_the_limits_that_are_set() -> None:
    settings = load(flags={"max_leaves": 5, "max_depth": 6, "slot_max_bytes": 1 << 30, "chunk_bytes": 8192})
    assert settings.limits == Limits(
        max_leaves=5,
        max_depth=6,
        max_manifest_bytes=settings.max_manifest_bytes,
        max_micro_batch_bytes=1 << 30,
        chunk_bytes=8192,
        max_eager_bytes=64 << 10,
    )


def test_the_ledger_gets_what_is_set() -> None:
    settings = load(flags={"fill_lease_s": 1.5, "max_waiting_offers": 3, "remembered_keys": 4})
    ledger = settings.ledger
    assert (ledger.fill_lease_s, ledger.max_waiting_offers, ledger.remembered_keys) == (1.5, 3, 4)
    assert ledger.limits == settings.limits


def test_the_command_has_an_option_for_every_setting() -> None:
    parameters = inspect.signature(serve).parameters
    assert set(parameters) == {"config", *NAMES}


def test_a_data_endpoint_that_only_this_host_reaches_is_no_setting_beside_a_control_endpoint_that_all_do() -> None:
    with pytest.raises(SettingError, match=r"setting data_endpoint; .*as they reach control_endpoint at tcp"):
        Settings(control_endpoint="tcp://0.0.0.0:1", data_endpoint="tcp://127.0.0.1:2", insecure=True)
