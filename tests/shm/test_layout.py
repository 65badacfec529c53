from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from forebay.shm import (
    BODY_OFFSET,
    HEADER_BYTES,
    HEADER_FIELDS,
    LAYOUT_VERSION,
    Envelope,
    SlotFile,
    SlotState,
    envelope_offset,
    file_bytes_for,
    format_header,
    read_envelope,
    read_header,
    slot_path,
    write_envelope,
    write_field,
)
from forebay.wire import HostError

BUFFER_BYTES = 4 * 4096
ENVELOPE = Envelope(queue="q", key="k", attempt="a", manifest=b"manifest")
ENCODED = msgspec.msgpack.encode(ENVELOPE)


# --- the table ---


def test_the_documented_bytes_are_exactly_these() -> None:
    # A slot file outlives the daemon that wrote it: change LAYOUT_VERSION when this changes.
    assert {name: (field.offset, field.format) for name, field in HEADER_FIELDS.items()} == {
        "magic": (0, "8s"),
        "layout_version": (8, "<I"),
        "state": (12, "<I"),
        "generation": (16, "<Q"),
        "sequence": (24, "<Q"),
        "body_bytes": (32, "<Q"),
        "envelope_bytes": (40, "<Q"),
        "envelope_checksum": (48, "<Q"),
        "holder": (56, "64s"),
        "ready_at": (120, "<d"),
        "lent_at": (128, "<d"),
    }
    assert (LAYOUT_VERSION, HEADER_BYTES, BODY_OFFSET) == (3, 136, 4096)
    states = [(state.name, state.value) for state in SlotState]
    assert states == [("FREE", 0), ("FILLING", 1), ("READY", 2), ("LENT", 3), ("QUARANTINED", 4)]


def test_fields_are_in_order_aligned_and_do_not_overlap() -> None:
    fields = list(HEADER_FIELDS.values())
    sizes = [struct.calcsize(field.format) for field in fields]
    for field, size in zip(fields, sizes, strict=True):
        assert field.offset % min(size, 8) == 0
    ends = [field.offset + size for field, size in zip(fields, sizes, strict=True)]
    assert all(end <= field.offset for end, field in zip(ends, fields[1:], strict=False))
    assert ends[-1] == HEADER_BYTES <= BODY_OFFSET


def test_every_field_says_its_unit_and_meaning() -> None:
    assert all(field.unit and field.meaning for field in HEADER_FIELDS.values())


@pytest.mark.parametrize(
    ("body_bytes", "offset"),
    [(0, 4096), (1, 4160), (63, 4160), (64, 4160), (65, 4224), (1 << 40, (1 << 40) + 4096)],
)
def test_the_envelope_starts_at_the_cache_line_after_the_body(body_bytes: int, offset: int) -> None:
    assert envelope_offset(body_bytes) == offset
    assert file_bytes_for(body_bytes, 10) == offset + 10


# --- one suite over plain and shared memory ---


def _plain(_: Path) -> memoryview:
    return memoryview(bytearray(BUFFER_BYTES))


def _anonymous(_: Path) -> memoryview:
    return memoryview(mmap.mmap(-1, BUFFER_BYTES))


def _file(folder: Path) -> memoryview:
    path = folder / "memory"
    path.write_bytes(bytes(BUFFER_BYTES))
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), BUFFER_BYTES))


def _slot(folder: Path) -> memoryview:
    file = SlotFile(folder, 0)
    file.reserve(BUFFER_BYTES)
    file.close()
    with slot_path(folder, 0).open("r+b") as opened:
        return memoryview(mmap.mmap(opened.fileno(), BUFFER_BYTES))


@pytest.fixture(params=[_plain, _anonymous, _file, _slot], ids=lambda make: make.__name__.strip("_"))
def buffer(request: pytest.FixtureRequest, shm_dir: Path) -> memoryview:
    make: Callable[[Path], memoryview] = request.param
    memory = make(shm_dir)
    format_header(memory)
    return memory


def test_a_fresh_header_is_free_and_at_generation_0(buffer: memoryview) -> None:
    header = read_header(buffer)
    assert (header.state, header.generation, header.holder) == (SlotState.FREE, 0, "")
    assert bytes(buffer[:8]) == b"FOREBAY1"


@pytest.mark.parametrize("state", SlotState)
def test_every_field_reads_as_it_was_written_and_disturbs_no_other(buffer: memoryview, state: SlotState) -> None:
    largest = (1 << 64) - 1
    values: dict[str, int | bytes] = {
        "state": state,
        "generation": largest,
        "sequence": largest - 1,
        "body_bytes": largest - 2,
        "envelope_bytes": 3,
        "envelope_checksum": 4,
        "holder": b"h" * 64,
    }
    for name, value in values.items():
        write_field(buffer, name, value)
    header = read_header(buffer)
    assert header.state is state
    assert (header.generation, header.sequence, header.body_bytes) == (largest, largest - 1, largest - 2)
    assert (header.envelope_bytes, header.envelope_checksum, header.holder) == (3, 4, "h" * 64)
    assert bytes(buffer[HEADER_BYTES:]) == bytes(BUFFER_BYTES - HEADER_BYTES)


@pytest.mark.parametrize("body_bytes", [0, 1, 64, 5000, BUFFER_BYTES - BODY_OFFSET - 64])
def test_an_envelope_reads_as_it_was_written(buffer: memoryview, body_bytes: int) -> None:
    write_field(buffer, "generation", 9)
    write_envelope(buffer, ENCODED, 9, body_bytes)
    header = read_header(buffer)
    assert (header.body_bytes, header.envelope_bytes) == (body_bytes, len(ENCODED))
    assert read_envelope(buffer, header) == ENVELOPE
    assert bytes(buffer[BODY_OFFSET : BODY_OFFSET + body_bytes]) == bytes(body_bytes)


def test_an_envelope_that_does_not_fit_is_refused_and_changes_nothing(buffer: memoryview) -> None:
    before = bytes(buffer)
    with pytest.raises(ValueError, match="different structures"):
        write_envelope(buffer, ENCODED, 1, BUFFER_BYTES - BODY_OFFSET)
    assert bytes(buffer) == before


@pytest.mark.parametrize("place", [0, 1, len(ENCODED) // 2, len(ENCODED) - 1])
def test_a_flipped_bit_in_the_envelope_is_detected(buffer: memoryview, place: int) -> None:
    write_envelope(buffer, ENCODED, 0, 100)
    buffer[envelope_offset(100) + place] ^= 0x10
    with pytest.raises(HostError, match=r"envelope is damaged.*must be sent again"):
        read_envelope(buffer, read_header(buffer))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("generation", 1), ("envelope_checksum", 0), ("body_bytes", 0), ("body_bytes", (1 << 64) - 1)),
        *(("envelope_bytes", 0), ("envelope_bytes", 1), ("envelope_bytes", (1 << 64) - 1)),
    ],
)
def test_an_envelope_of_another_loan_or_place_is_detected(buffer: memoryview, name: str, value: int) -> None:
    write_envelope(buffer, ENCODED, 0, 100)
    write_field(buffer, name, value)
    with pytest.raises(HostError, match="envelope is damaged"):
        read_envelope(buffer, read_header(buffer))


def test_a_fresh_slot_has_no_envelope(buffer: memoryview) -> None:
    with pytest.raises(HostError, match="envelope is damaged"):
        read_envelope(buffer, read_header(buffer))


@pytest.mark.parametrize("encoded", [b"", b"\xc1", b"\x90", b"\x94\xa1q\xa1k\xa1a\xa2\xff\xff"])
def test_an_envelope_that_is_none_is_refused_although_its_checksum_is_right(
    buffer: memoryview, encoded: bytes
) -> None:
    write_envelope(buffer, encoded, 0, 100)
    with pytest.raises(HostError, match="envelope cannot be read"):
        read_envelope(buffer, read_header(buffer))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("magic", b"FOREBAY2", "not a slot file of this version.*FOREBAY2"),
        ("magic", bytes(8), "not a slot file of this version"),
        ("layout_version", 0, "not a slot file of this version"),
        ("layout_version", LAYOUT_VERSION + 1, "not a slot file of this version"),
        ("state", len(SlotState), "state is none; got 5"),
        ("state", (1 << 32) - 1, "state is none; got 4294967295"),
    ],
)
def test_a_header_of_another_kind_is_refused(
    buffer: memoryview, name: str, value: int | bytes, words: str
) -> None:
    write_field(buffer, name, value)
    with pytest.raises(HostError, match=words):
        read_header(buffer)


@pytest.mark.parametrize("nbytes", [0, 1, HEADER_BYTES - 1])
def test_a_header_that_is_cut_off_is_refused(buffer: memoryview, nbytes: int) -> None:
    with pytest.raises(HostError, match=r"not a slot file.*at least 136 bytes"):
        read_header(buffer[:nbytes])
    assert read_header(buffer[:HEADER_BYTES]) == read_header(buffer)
