"""Which codec is chosen for what, and on which link it pays."""

from __future__ import annotations

import gc
import itertools
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.orchestrator_client import StagingClient, TrainerHandle
from forebay.orchestrator_client.codec_choice import (
    AS_IT_IS,
    CodecChoice,
    choose_codecs,
    needs_samples,
)
from forebay.orchestrator_client.settings import AUTO, CODEC_SETTINGS
from forebay.wire import BITSHUFFLE_LZ4, CODECS, DTYPES, MIB, RAW, SHUFFLE_LZ4, Array, SettingError

KIB = 1 << 10
FAST = 6e9
RNG = np.random.default_rng(11)

random_bytes = RNG.integers(0, 256, MIB, np.uint8)
random_floats = RNG.random(MIB // 4, np.float32)
expert_ids = RNG.integers(0, 512, MIB // 2).astype(np.int16)
token_ids = RNG.integers(0, 150_000, MIB // 4).astype(np.int32)
slow_floats = np.linspace(0, 1, MIB // 8)
slow_ids = np.arange(MIB // 4, dtype=np.int32)
constant = np.full(MIB // 4, 1.2345, np.float32)
zeros = np.zeros(MIB // 2, np.float16)
small_ids = expert_ids[: (256 * KIB - 2) // 2]


def seconds(each_s: float) -> Callable[[], float]:
    """Makes a clock on which each look is that much later."""
    times = itertools.count()
    return lambda: next(times) * each_s


def choice_for(
    array: Array, codec: str = AUTO, link: float | None = None, *, clock: Callable[[], float] | None = None
) -> CodecChoice:
    [choice] = choose_codecs([array], codec, link, clock=clock or seconds(1.0))
    return choice


# --- what the samples say ---


@pytest.mark.parametrize("link", [None, 1e6, FAST / 2])
@pytest.mark.parametrize(
    ("array", "codec", "ratio"),
    [
        (random_bytes, RAW, 1.0),
        (random_bytes.view(np.int16), RAW, 1.0),
        (random_bytes.view(np.float32), RAW, 1.0),
        (random_floats, BITSHUFFLE_LZ4, 0.85),
        (expert_ids, BITSHUFFLE_LZ4, 0.575),
        (expert_ids.reshape(64, -1), BITSHUFFLE_LZ4, 0.575),
        (token_ids, BITSHUFFLE_LZ4, 0.65),
        (slow_ids, SHUFFLE_LZ4, 0.05),
        (slow_floats, BITSHUFFLE_LZ4, 0.1),
        (constant, SHUFFLE_LZ4, 0.02),
        (zeros, SHUFFLE_LZ4, 0.02),
    ],
    ids=[
        *("bytes", "int16 bits", "float32 bits", "floats", "experts", "2-d experts", "tokens"),
        *("slow ids", "slow floats", "constant", "zeros"),
    ],
)
def test_what_saves_bytes_is_chosen_and_noise_travels_as_it_is(
    array: Array, codec: str, ratio: float, link: float | None
) -> None:
    choice = choice_for(array, link=link)
    assert choice.codec == codec
    assert choice.ratio <= ratio
    assert not choice.is_forced


@pytest.mark.parametrize(
    "array",
    [small_ids, expert_ids[:0], np.int16(3).reshape(()), np.zeros((), np.float64), np.zeros((4, 0), np.int32)],
    ids=["small", "empty", "0-d", "0-d float", "zero-size"],
)
def test_small_leaves_travel_as_they_are(array: Array) -> None:
    assert choice_for(array) is AS_IT_IS


def test_a_leaf_of_256_kib_is_looked_at() -> None:
    assert choice_for(expert_ids[: 128 * KIB]).codec == BITSHUFFLE_LZ4


def test_each_leaf_is_looked_at_alone() -> None:
    arrays = [random_bytes, expert_ids, small_ids, zeros, expert_ids[:0]]
    choices = choose_codecs(arrays, AUTO, None, clock=seconds(1.0))
    assert [choice.codec for choice in choices] == [RAW, BITSHUFFLE_LZ4, RAW, SHUFFLE_LZ4, RAW]


def test_samples_are_taken_from_all_of_a_leaf() -> None:
    half = np.concatenate([expert_ids, random_bytes.view(np.int16)])
    assert 0.7 < choice_for(half).ratio < 0.85
    assert choice_for(half[::-1].copy()).ratio == pytest.approx(choice_for(half).ratio, abs=0.02)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("extra", [0, 1, 12345])
def test_leaves_of_every_dtype_and_odd_length_are_looked_at_and_not_changed(name: str, extra: int) -> None:
    dtype = DTYPES[name]
    count = 256 * KIB // dtype.itemsize + extra
    array = np.resize(expert_ids.view(np.uint8), count * dtype.itemsize).view(dtype)
    before = array.tobytes()
    array.flags.writeable = False
    assert choice_for(array).codec in CODECS
    assert array.tobytes() == before


def test_the_speed_of_an_encoder_is_that_of_the_fastest_sample() -> None:
    assert choice_for(expert_ids, clock=seconds(0.5)).encode_bytes_per_s == 32 * KIB / 0.5


def test_a_clock_that_stands_still_is_no_error() -> None:
    choice = choice_for(expert_ids, clock=lambda: 7.0)
    assert choice.encode_bytes_per_s > 1e12
    assert choice.pays(1e6, 1)


# --- what was asked for ---


@pytest.mark.parametrize("link", [None, 1e6, FAST, 1e12])
@pytest.mark.parametrize("codec", [SHUFFLE_LZ4, BITSHUFFLE_LZ4])
def test_a_codec_that_was_asked_for_is_taken_for_all_that_has_bytes(codec: str, link: float | None) -> None:
    arrays = [random_bytes, small_ids, np.zeros((), np.int8), expert_ids[:0]]
    assert not needs_samples(arrays, codec, link)
    choices = choose_codecs(arrays, codec, link, clock=no_clock)
    assert choices[:3] == (CodecChoice(codec, is_forced=True),) * 3
    assert choices[3] is AS_IT_IS
    assert all(choice.pays(link, 1) for choice in choices[:3])


@pytest.mark.parametrize(("codec", "link"), [(RAW, None), (RAW, 1e6), (AUTO, FAST), (AUTO, 1e12)])
def test_nothing_is_looked_at_where_raw_is_asked_for_or_the_link_is_fast(codec: str, link: float | None) -> None:
    assert not needs_samples([expert_ids], codec, link)
    assert choose_codecs([expert_ids, zeros], codec, link, clock=no_clock) == (AS_IT_IS, AS_IT_IS)


def no_clock() -> float:
    raise AssertionError("samples were encoded")


@pytest.mark.parametrize("link", [None, 1e6, FAST - 1])
def test_samples_are_needed_for_large_leaves_alone(link: float | None) -> None:
    assert needs_samples([small_ids, expert_ids], AUTO, link)
    assert not needs_samples([small_ids, zeros[:10]], AUTO, link)
    assert not needs_samples([], AUTO, link)
    assert choose_codecs([small_ids], AUTO, link, clock=no_clock) == (AS_IT_IS,)
    assert choose_codecs([], AUTO, link, clock=no_clock) == ()


def test_the_settings_are_auto_and_the_codecs() -> None:
    assert list(CODEC_SETTINGS) == ["auto", *CODECS]


# --- whether it pays ---

MB = 1e6
half = CodecChoice(BITSHUFFLE_LZ4, ratio=0.5, encode_bytes_per_s=1000 * MB)


@pytest.mark.parametrize(
    ("choice", "link", "encoders", "pays"),
    [
        (half, None, 1, False),
        (half, 100 * MB, 1, True),
        (half, 900 * MB, 1, True),
        (half, 910 * MB, 1, False),
        (half, 910 * MB, 2, True),
        (half, 5000 * MB, 4, False),
        (CodecChoice(SHUFFLE_LZ4, 0.5, 50 * MB), 100 * MB, 1, False),
        (CodecChoice(SHUFFLE_LZ4, 0.5, 50 * MB), 100 * MB, 4, True),
        (CodecChoice(SHUFFLE_LZ4, 0.95, 1e12), 1 * MB, 4, False),
        (CodecChoice(SHUFFLE_LZ4, 0.9, 1e12), 1 * MB, 4, True),
        (CodecChoice(SHUFFLE_LZ4, is_forced=True), None, 1, True),
        (CodecChoice(SHUFFLE_LZ4, 1.0, 1.0, is_forced=True), 1e12, 1, True),
        (AS_IT_IS, None, 1, False),
        (AS_IT_IS, 1.0, 4, False),
    ],
)
def test_it_pays_where_encoded_bytes_clearly_arrive_sooner(
    choice: CodecChoice, link: float | None, encoders: int, pays: bool
) -> None:
    assert choice.pays(link, encoders) is pays


def rates() -> Iterator[st.SearchStrategy[float]]:
    return itertools.repeat(st.floats(1.0, 1e12))


@given(st.floats(0.01, 0.95), *itertools.islice(rates(), 3), st.integers(1, 8))
def test_what_does_not_pay_on_a_link_does_not_pay_on_a_faster_one(
    ratio: float, encode: float, link: float, faster_by: float, encoders: int
) -> None:
    choice = CodecChoice(SHUFFLE_LZ4, ratio, encode)
    if not choice.pays(link, encoders):
        assert not choice.pays(link + faster_by, encoders)
    if choice.pays(link, encoders):
        assert choice.pays(link, encoders + 1)


# --- the setting ---


@pytest.mark.parametrize("make", [StagingClient, TrainerHandle])
@pytest.mark.parametrize("is_given", [True, False])
@pytest.mark.parametrize("codec", ["zstd", "", "RAW"])
def test_a_codec_that_there_is_not_is_refused_by_its_setting_and_nothing_is_left_open(
    monkeypatch: pytest.MonkeyPatch, make: Callable[..., object], codec: str, is_given: bool
) -> None:
    if not is_given:
        monkeypatch.setenv("FOREBAY_CODEC", codec)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(SettingError, match=r"setting codec.*auto, raw, shuffle-lz4, bitshuffle-lz4") as error:
            make("ipc:///nowhere", **({"codec": codec} if is_given else {}))
        # What was not closed warns when it goes, and lives on in its warning.
        del error
        gc.collect()
        words = [str(warning.message) for warning in caught]
        caught.clear()
        gc.collect()
    assert words == []
