"""What a setting is: how it is declared, read from text and checked."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.wire import (
    Setting,
    SettingError,
    UsageError,
    check_settings,
    parse_settings,
    read_variables,
    setting,
    setting_of,
    variable_of,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kettle:
    keep_warm: bool = setting(False, "stay warm after boiling")
    cups: int = setting(2, "cups to boil", 1, 12, "measured: a family")
    heat_s: float = setting(1.5, "seconds of heat", 0.1, 60, variable="STOVE_HEAT_S")
    whistle: str = setting(
        "low", "what it says when done", choices=("off", "low", "high"), variable="STOVE_WHISTLE"
    )
    owner: str = setting(lambda: "no" + "body", "whose it is")

    def __post_init__(self) -> None:
        check_settings(self)


FIELDS = {field.name: field for field in dataclasses.fields(Kettle)}
SHOWN = {
    "keep_warm": "keep_warm",
    "cups": "cups",
    "heat_s": "heat_s (STOVE_HEAT_S)",
    "whistle": "whistle (STOVE_WHISTLE)",
    "owner": "owner",
}


def make(**values: Any) -> Kettle:
    return Kettle(**parse_settings(Kettle, values))


def complaint(caught: pytest.ExceptionInfo[SettingError]) -> str:
    message = str(caught.value)
    assert "\n" not in message, "one line"
    assert isinstance(caught.value, UsageError)
    return message


# --- declared ---


def test_a_setting_carries_what_is_known_of_it() -> None:
    assert setting_of(FIELDS["cups"]) == Setting("cups to boil", 1, 12, "measured: a family")
    assert setting_of(FIELDS["whistle"]) == Setting(
        "what it says when done", choices=("off", "low", "high"), variable="STOVE_WHISTLE"
    )


def test_a_default_is_a_value_or_a_function_that_makes_it() -> None:
    kettle = Kettle()
    assert (kettle.keep_warm, kettle.cups, kettle.heat_s, kettle.whistle) == (False, 2, 1.5, "low")
    assert kettle.owner == "nobody"


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("keep_warm", ""),
        ("cups", "1 to 12"),
        ("heat_s", "0.1 to 60"),
        ("whistle", "off, low, high"),
        ("owner", ""),
    ],
)
def test_a_limit_in_words_is_the_range_or_the_choices(name: str, limit: str) -> None:
    assert setting_of(FIELDS[name]).limit == limit


# --- the environment ---


def test_a_variable_is_the_settings_name_in_capitals_unless_another_is_given() -> None:
    assert {name: variable_of(field) for name, field in FIELDS.items()} == {
        "keep_warm": "FOREBAY_KEEP_WARM",
        "cups": "FOREBAY_CUPS",
        "heat_s": "STOVE_HEAT_S",
        "whistle": "STOVE_WHISTLE",
        "owner": "FOREBAY_OWNER",
    }


def test_only_a_settings_own_variable_is_read() -> None:
    environment = {"FOREBAY_CUPS": "3", "FOREBAY_HEAT_S": "9", "STOVE_WHISTLE": "", "CUPS": "4", "HOME": "/"}
    assert read_variables(Kettle, environment) == {"cups": "3", "whistle": ""}


def test_this_processs_own_environment_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_CUPS", "3")
    assert read_variables(Kettle, {}) == {}
    assert make() == Kettle()


# --- text ---


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        *(("keep_warm", text, True) for text in ("1", "true", "TRUE", "Yes", "on")),
        *(("keep_warm", text, False) for text in ("0", "false", "No", "OFF")),
        ("cups", "12", 12),
        ("cups", "1_0", 10),
        ("cups", " 3\n", 3),
        ("heat_s", "2", 2.0),
        ("heat_s", "2.5e1", 25.0),
        ("whistle", "off", "off"),
        ("owner", " me ", " me "),
        ("owner", "", ""),
    ],
)
def test_text_is_read_as_the_settings_type(name: str, text: str, value: object) -> None:
    got = getattr(make(**{name: text}), name)
    assert (got, type(got)) == (value, type(value))


def test_values_that_have_a_type_already_are_kept() -> None:
    given = {"keep_warm": True, "cups": 4, "heat_s": 0.5, "whistle": "high", "owner": "me"}
    assert parse_settings(Kettle, given) == given


def test_an_integer_is_a_number() -> None:
    heat_s = make(heat_s=3).heat_s
    assert (heat_s, type(heat_s)) == (3.0, float)
    assert Kettle(heat_s=3).heat_s == 3


# --- wrong values ---

WRONG_TYPES: list[tuple[str, Any, str]] = [
    *(("keep_warm", value, "true or false") for value in ("", "2", "perhaps", 1, 0, 1.0, [True], None)),
    *(("cups", value, "an integer") for value in ("", "  ", "four", "1.0", "0x10", 2.0, True, [4], b"4", None)),
    *(("heat_s", value, "a number") for value in ("", "soon", True, [1.0], b"1", None)),
    *(("whistle", value, "off, low, high") for value in (1, False, ["low"], None)),
    *(("owner", value, "a text") for value in (4, True, b"me", ["me"], None)),
]
OUT_OF_LIMITS: list[tuple[str, Any, str]] = [
    *(("cups", value, "1 to 12") for value in (0, 13, -1, "0", "-4", 10**99)),
    *(("heat_s", value, "0.1 to 60") for value in (0.0, 61.0, 0.09, "nan", "inf", "-inf")),
    *(("whistle", value, "off, low, high") for value in ("", " ", "low ", " low", "LOW", "on", "lo", "off, low")),
]


@pytest.mark.parametrize(("name", "value", "limit"), [*WRONG_TYPES, *OUT_OF_LIMITS])
def test_a_wrong_value_is_one_line_that_names_setting_variable_value_and_limit(
    name: str, value: object, limit: str
) -> None:
    with pytest.raises(SettingError) as caught:
        make(**{name: value})
    shown, got = SHOWN[name], value
    if value == "":
        # It comes from a variable that is set to nothing, mostly.
        shown, got = f"{name} ({variable_of(FIELDS[name])})", "an empty text"
    assert complaint(caught) == f"setting {shown}; got {got}; limit {limit}"


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, value, _ in WRONG_TYPES if not isinstance(value, str)]
)
def test_a_value_that_was_never_parsed_is_checked_as_well(name: str, value: Any) -> None:
    with pytest.raises(SettingError) as caught:
        Kettle(**{name: value})
    assert complaint(caught).startswith(f"setting {SHOWN[name]}; got {value}; ")


def test_text_where_a_number_belongs_is_refused_when_it_was_never_parsed() -> None:
    unparsed: Any = "3"
    with pytest.raises(SettingError) as caught:
        Kettle(cups=unparsed)
    assert complaint(caught) == "setting cups; got 3; limit an integer"


def test_a_huge_value_is_one_short_line() -> None:
    for value in (10**5000, -(10**5000), "9" * 10_000, "x" * 10_000):
        with pytest.raises(SettingError) as caught:
            make(cups=value)
        assert len(complaint(caught)) < 400
    for value in (10**5000, 10**400, "1e999", "9" * 10_000):
        with pytest.raises(SettingError) as caught:
            make(heat_s=value)
        assert len(complaint(caught)) < 400


def test_a_control_character_cannot_break_the_line() -> None:
    with pytest.raises(SettingError) as caught:
        make(whistle="low\n\x1b[2J")
    assert complaint(caught) == r"setting whistle (STOVE_WHISTLE); got low\n\x1b[2J; limit off, low, high"


def test_the_refused_value_stays_readable() -> None:
    with pytest.raises(SettingError) as caught:
        make(cups="13")
    assert (caught.value.got, caught.value.limit) == (13, "1 to 12")


ANYTHING = st.text() | st.integers() | st.floats() | st.booleans() | st.none() | st.lists(st.text())


@given(st.dictionaries(st.sampled_from(sorted(FIELDS)), ANYTHING))
def test_whatever_is_given_ends_as_settings_within_their_limits_or_as_one_line(values: dict[str, Any]) -> None:
    message = ""
    try:
        kettle = make(**values)
    except SettingError as error:
        message = str(error)
    if message:
        assert message.isprintable()
        return
    assert isinstance(kettle.keep_warm, bool)
    assert 1 <= kettle.cups <= 12
    assert 0.1 <= kettle.heat_s <= 60
    assert kettle.whistle in ("off", "low", "high")
    assert isinstance(kettle.owner, str)
