"""The figures that the demonstration prints, and the settings that it takes."""

import asyncio
import os
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from forebay.demo.events import AnyEvent, PulledBatch, TrainedBatch, TrainedStep, TrainerDevice, decode_event
from forebay.demo.memory_probe import MemoryProbe
from forebay.demo.orchestrator import made_ahead
from forebay.demo.result import DemoResult, compared, first_fill_s, idle_fraction
from forebay.demo.settings import DemoSettings, Mode, decode_settings
from forebay.orchestrator_client import Bar
from forebay.wire import SettingError


def step(number: int, *, idle_s: float, step_s: float) -> TrainedStep:
    return TrainedStep(
        number=number,
        began_at=10.0,
        metrics={"stage/idle_s": idle_s, "stage/step_s": step_s},
        fallbacks=(("a", "refused"),),
        spans=(Bar("pull", "a", 9.0, 9.5), Bar("wait", "a", 10.0, 11.0), Bar("device", "a", 11.0, 14.0)),
    )


STEPS = [step(0, idle_s=2.0, step_s=5.0), step(1, idle_s=0.0, step_s=3.0)]
TRAINED = TrainedBatch(key="a", step=0, loss=1.5, source="staged")


def result(mode: Mode, **changes: Any) -> DemoResult:
    same: dict[str, Any] = {
        "steps": 1,
        "micro_batches": 2,
        "staged": 2,
        "inline": 0,
        "fallbacks": 0,
        "payload_bytes": 10,
        "processes": {},
        "device": "cpu:0 (cpu)",
        "wire_gbit_s": 0.0,
        "fallback_reasons": [],
        "losses": [[0.0, 1.5]],
        "bit_identical": True,
        "differences": (),
        "compared_leaves": 4,
        "parameters_digest": "d",
        "seconds_a_step": 1.0,
        "idle_fraction": 0.0,
        "first_fill_s": 0.0,
        "idle_fraction_after_fill": 0.0,
        "step_metrics": [],
        "leaked_shm": [],
        "seconds": 2.0,
        "daemon_private_mib": 1.0,
        "daemon_private_mib_before": 1.0,
    }
    return DemoResult(mode=mode, **same | changes)


def test_idle_fraction_is_the_waits_share_of_the_steps() -> None:
    assert idle_fraction(STEPS) == 0.25
    assert idle_fraction([]) == 0.0


def test_first_fill_is_the_first_wait_and_can_be_left_out() -> None:
    assert first_fill_s(STEPS) == 1.0
    assert idle_fraction(STEPS, left_out_s=1.0) == 1 / 7


def test_modes_with_the_same_bits_are_identical() -> None:
    both = compared([result(Mode.OFF), result(Mode.STAGE)])
    assert both.bit_identical
    assert both.differences == ()
    assert both.seconds == 4.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"losses": [[-0.0, 1.5]]}, "losses of off differ from those of stage"),
        ({"parameters_digest": "e"}, "parameters of off differ from those of stage"),
    ],
)
def test_one_bit_between_modes_is_a_difference(changes: dict[str, Any], words: str) -> None:
    both = compared([result(Mode.OFF), result(Mode.STAGE, **changes)])
    assert not both.bit_identical
    assert both.differences == (words,)


def test_modes_of_which_one_differs_from_plain_training_are_not_identical() -> None:
    both = compared([result(Mode.OFF), result(Mode.STAGE, bit_identical=False, leaked_shm=["/dev/shm/x"])])
    assert not both.bit_identical
    assert both.leaked_shm == ["/dev/shm/x"]


EVENTS = [*STEPS, TRAINED, PulledBatch(key="a", payload_bytes=3), TrainerDevice(name="cpu:0", kind="cpu")]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_survive_the_pipe(event: AnyEvent) -> None:
    assert decode_event(msgspec.json.encode(event)) == event


def test_settings_survive_the_command_line() -> None:
    settings = DemoSettings(steps=2, micro_batches=5, payload_mib=1.5, seed=9, mode=Mode.OFF, wire_gbit_s=2.5)
    assert decode_settings(settings.encode()) == settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 0),
        ("micro_batches", 0),
        ("payload_mib", 0.0),
        ("payload_mib", 1024.5),
        ("seed", -1),
        ("wire_gbit_s", -1.0),
    ],
)
def test_setting_out_of_range_is_named(name: str, value: float) -> None:
    with pytest.raises(SettingError, match=f"setting {name} is out of range; got {value}; limit "):
        msgspec.convert({name: value}, DemoSettings)


def test_settings_that_cannot_be_read_are_an_error_of_settings() -> None:
    with pytest.raises(SettingError, match="cannot be read"):
        decode_settings("{")


def test_fitting_wire_takes_the_real_share_of_the_compute() -> None:
    settings = DemoSettings(payload_mib=16)
    rate = settings.wire_gbit_s_for(2.0)
    slow = msgspec.structs.replace(settings, wire_gbit_s=rate)
    assert slow.payload_bytes / slow.wire_bytes_per_s == pytest.approx(0.87 * 2.0)


def test_items_are_made_ahead_and_in_order() -> None:
    made = []

    def items() -> Iterator[int]:
        for number in range(4):
            made.append(number)
            yield number

    async def take_all() -> list[int]:
        return [item async for item in made_ahead(items())]

    assert asyncio.run(take_all()) == made == [0, 1, 2, 3]


def test_memory_probe_sees_this_process() -> None:
    with MemoryProbe(os.getpid()) as memory:
        pass
    assert 1 < memory.first_mib <= memory.peak_mib < sys.maxsize


def test_memory_probe_of_a_process_that_is_gone_reads_zero() -> None:
    assert MemoryProbe((1 << 22) + 1).peak_mib == 0.0
