"""The figures that the demonstration prints, and the settings that it takes."""

import asyncio
import os
import sys
from collections.abc import Iterator

import msgspec
import pytest

from forebay.demo.events import StagedBatch, TrainedBatch, TrainerDevice, decode_event
from forebay.demo.memory_probe import MemoryProbe
from forebay.demo.orchestrator import made_ahead
from forebay.demo.result import idle_fraction, summarize
from forebay.demo.settings import DemoSettings, decode_settings
from forebay.wire import SettingError


def trained(key: str, step: int, *, idle_s: float, compute_s: float) -> TrainedBatch:
    return TrainedBatch(
        key=key, step=step, loss=float(step), host_bytes=10, promote_s=0.5, idle_s=idle_s, compute_s=compute_s
    )


EVENTS = [
    trained("a", 0, idle_s=0.0, compute_s=2.0),
    trained("b", 0, idle_s=1.0, compute_s=1.0),
    trained("c", 1, idle_s=1.0, compute_s=3.0),
]
STAGED = [StagedBatch(key=key, payload_bytes=10, stage_s=s) for key, s in (("a", 1.0), ("b", 3.0), ("c", 5.0))]


def test_idle_fraction_is_the_waits_share_from_first_dispatch_to_last_ready() -> None:
    assert idle_fraction(EVENTS) == 0.25
    assert idle_fraction([]) == 0.0


def test_steps_are_summarized_apart() -> None:
    first, second = summarize(EVENTS, STAGED)
    assert (first.losses, first.payload_bytes, first.stage_s, first.compute_s) == ([0.0, 0.0], 20, 2.0, 1.5)
    assert (second.losses, second.payload_bytes, second.stage_s, second.compute_s) == ([1.0], 10, 5.0, 3.0)
    assert (first.idle_fraction, second.idle_fraction) == (0.25, 0.25)


@pytest.mark.parametrize("event", [*EVENTS, *STAGED, TrainerDevice(name="cpu:0", kind="cpu")])
def test_events_survive_the_pipe(event: TrainedBatch | StagedBatch | TrainerDevice) -> None:
    assert decode_event(msgspec.json.encode(event)) == event


def test_settings_survive_the_command_line() -> None:
    settings = DemoSettings(steps=2, micro_batches=5, payload_mib=1.5, seed=9)
    assert decode_settings(settings.encode()) == settings


@pytest.mark.parametrize(
    ("name", "value"),
    [("steps", 0), ("micro_batches", 0), ("payload_mib", 0.0), ("payload_mib", 1024.5), ("seed", -1)],
)
def test_setting_out_of_range_is_named(name: str, value: float) -> None:
    with pytest.raises(SettingError, match=f"setting {name} is out of range; got {value}; limit "):
        msgspec.convert({name: value}, DemoSettings)


def test_settings_that_cannot_be_read_are_an_error_of_settings() -> None:
    with pytest.raises(SettingError, match="cannot be read"):
        decode_settings("{")


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
