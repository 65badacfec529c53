from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import forebay.shm.layout
import forebay.shm.slot_file
from forebay.shm import (
    BODY_OFFSET,
    Envelope,
    SlotFile,
    SlotHeader,
    SlotState,
    SlotView,
    file_bytes_for,
    slot_path,
)
from forebay.wire import HostError

from .processes import Spawn

ENVELOPE = Envelope(queue="q", key="k", attempt="a", manifest=b"manifest")
ENCODED = msgspec.msgpack.encode(ENVELOPE)
BODY_BYTES = 3 * 4096 + 5
FILE_BYTES = file_bytes_for(BODY_BYTES, len(ENCODED))


@pytest.fixture
def file(shm_dir: Path) -> Iterator[SlotFile]:
    file = SlotFile(shm_dir, 0)
    yield file
    file.close()


def fill(file: SlotFile, generation: int = 1, body: bytes = b"\x5a" * BODY_BYTES) -> None:
    """Takes a slot from FREE to READY, as the daemon does."""
    file.reserve(file_bytes_for(len(body), len(ENCODED)))
    file.remap()
    file.write_loan(generation, ENCODED, len(body))
    file.body(0, len(body))[:] = body
    file.write_state(SlotState.READY, sequence=generation)


# --- the daemon's side ---


def test_a_new_slot_is_one_free_page_and_private(file: SlotFile, shm_dir: Path) -> None:
    assert file.file_bytes == BODY_OFFSET == slot_path(shm_dir, 0).stat().st_size
    assert file.header() == SlotHeader(SlotState.FREE, 0, 0, 0, 0, 0, "", 0.0, 0.0)
    assert slot_path(shm_dir, 0).name == "slot-0000"
    assert slot_path(shm_dir, 0).stat().st_mode & 0o777 == 0o600


def test_a_slot_grows_and_never_shrinks(file: SlotFile, shm_dir: Path) -> None:
    for want, size in [(10_000, 10_000), (5, 10_000), (BODY_OFFSET, 10_000), (20_001, 20_001), (20_001, 20_001)]:
        file.reserve(want)
        file.remap()
        assert file.file_bytes == slot_path(shm_dir, 0).stat().st_size == size


def test_reserving_leaves_the_mapping_in_use_alone_until_it_is_renewed(file: SlotFile) -> None:
    file.reserve(8192)
    assert file.file_bytes == BODY_OFFSET
    file.remap()
    assert file.file_bytes == 8192
    assert len(file.body(0, 4096)) == 4096


def test_a_loan_and_its_publication_are_in_the_header(file: SlotFile) -> None:
    fill(file, generation=5)
    header = file.header()
    assert (header.state, header.generation, header.sequence) == (SlotState.READY, 5, 5)
    assert (header.body_bytes, header.envelope_bytes, header.holder) == (BODY_BYTES, len(ENCODED), "")
    assert file.envelope() == ENVELOPE


def test_states_name_their_holder_only_while_there_is_one(file: SlotFile) -> None:
    fill(file)
    file.write_state(SlotState.LENT, sequence=3, holder="h" * 64, ready_at=1.5, lent_at=2.5)
    assert (file.header().ready_at, file.header().lent_at) == (1.5, 2.5)
    assert (file.header().state, file.header().holder, file.header().sequence) == (SlotState.LENT, "h" * 64, 3)
    file.write_state(SlotState.QUARANTINED, sequence=3, holder="h")
    assert (file.header().state, file.header().holder) == (SlotState.QUARANTINED, "h")
    file.write_state(SlotState.READY, sequence=3)
    assert (file.header().state, file.header().holder, file.header().sequence) == (SlotState.READY, "", 3)
    assert file.envelope() == ENVELOPE


def test_a_loan_whose_envelope_does_not_fit_changes_no_header(file: SlotFile) -> None:
    before = file.header()
    with pytest.raises(ValueError, match="different structures"):
        file.write_loan(1, ENCODED, BODY_BYTES)
    assert file.header() == before


def test_leaves_keep_their_alignment_in_memory(file: SlotFile) -> None:
    fill(file)
    assert np.frombuffer(file.body(0, 64), np.uint8).ctypes.data % 64 == 0
    assert np.frombuffer(file.body(64, 64), np.uint8).ctypes.data % 64 == 0


def test_an_existing_slot_is_opened_as_it_is(file: SlotFile, shm_dir: Path) -> None:
    fill(file)
    again = SlotFile(shm_dir, 0)
    assert again.header() == file.header()
    assert again.file_bytes == FILE_BYTES
    assert again.envelope() == ENVELOPE
    assert bytes(again.body(0, BODY_BYTES)) == b"\x5a" * BODY_BYTES
    again.close()


def test_closing_twice_closes_no_other_file(file: SlotFile) -> None:
    file.close()
    reused = os.open("/dev/null", os.O_RDONLY)
    file.close()
    os.fstat(reused)
    os.close(reused)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize(
    "contents",
    [b"notes", b"x" * 5000, b"FOREBAY2" + bytes(5000), b"FOREBAY1" + b"\x01" + bytes(5000), b"FOREBAY1"],
    ids=["short", "long", "other magic", "the version before", "cut off"],
)
def test_a_foreign_file_is_refused_and_left_as_it_was(shm_dir: Path, contents: bytes) -> None:
    slot_path(shm_dir, 0).write_bytes(contents)
    with pytest.raises(HostError, match="not a slot file"):
        SlotFile(shm_dir, 0)
    assert snapshot(shm_dir) == {"slot-0000": contents}


def test_a_link_or_a_folder_in_a_slots_place_is_refused(shm_dir: Path) -> None:
    victim = shm_dir / "victim"
    victim.write_bytes(b"precious")
    slot_path(shm_dir, 0).symlink_to(victim)
    slot_path(shm_dir, 1).mkdir()
    for index in (0, 1, 2):
        folder = shm_dir if index < 2 else shm_dir / "missing"
        with pytest.raises(HostError, match=r"slot file .* cannot be opened"):
            SlotFile(folder, index)
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("size", [0, 100, BODY_OFFSET])
def test_a_daemon_killed_before_the_first_header_was_whole_needs_no_cleaning_up(shm_dir: Path, size: int) -> None:
    slot_path(shm_dir, 0).write_bytes(bytes(size))
    file = SlotFile(shm_dir, 0)
    assert file.header().state is SlotState.FREE
    assert file.file_bytes == BODY_OFFSET
    file.close()


class _Killed(Exception):  # noqa: N818
    """Stands for SIGKILL between two stores."""


def _live(folder: Path) -> None:
    """One slot's life through every state, twice."""
    file = SlotFile(folder, 0)
    try:
        file.reserve(FILE_BYTES)
        file.remap()
        for generation, last in [(1, SlotState.LENT), (2, SlotState.READY), (3, SlotState.FILLING)]:
            file.write_loan(generation, ENCODED, BODY_BYTES)
            if last is not SlotState.FILLING:
                file.write_state(SlotState.READY, sequence=7, ready_at=10.0)
            if last is SlotState.LENT:
                file.write_state(SlotState.LENT, sequence=7, holder="holder", ready_at=10.0, lent_at=20.0)
                file.write_state(SlotState.QUARANTINED, sequence=7, holder="holder", ready_at=10.0, lent_at=20.0)
                file.write_state(SlotState.READY, sequence=7, ready_at=30.0)
                file.write_state(SlotState.LENT, sequence=7, holder="holder", ready_at=30.0, lent_at=40.0)
            file.write_state(SlotState.FREE)
    finally:
        file.close()


def _stores(monkeypatch: pytest.MonkeyPatch, allowed: int) -> list[str]:
    stored: list[str] = []
    store = forebay.shm.layout.write_field

    def write_field(buffer: memoryview, name: str, value: int | bytes) -> None:
        if len(stored) == allowed:
            raise _Killed
        stored.append(name)
        store(buffer, name, value)

    monkeypatch.setattr(forebay.shm.layout, "write_field", write_field)
    monkeypatch.setattr(forebay.shm.slot_file, "write_field", write_field)
    return stored


def test_a_daemon_killed_between_any_two_stores_leaves_a_header_that_says_the_truth(shm_dir: Path) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        stored = _stores(monkeypatch, allowed=-1)
        _live(shm_dir)
    assert stored.count("state") == 1 + 7 + 3 + 2
    generation = 0
    seen = set()
    for count in range(len(stored)):
        slot_path(shm_dir, 0).unlink()
        with pytest.MonkeyPatch.context() as monkeypatch:
            _stores(monkeypatch, allowed=count)
            with pytest.raises(_Killed):
                _live(shm_dir)
        file = SlotFile(shm_dir, 0)
        header = file.header()
        seen.add(header.state)
        assert header.generation >= generation
        generation = header.generation
        if header.state not in (SlotState.FREE, SlotState.FILLING):
            assert header.sequence == 7
            assert header.ready_at in (10.0, 30.0)
            assert file.envelope() == ENVELOPE
        if header.state is SlotState.LENT:
            assert header.lent_at == header.ready_at + 10.0
        if header.state in (SlotState.LENT, SlotState.QUARANTINED):
            assert header.holder == "holder"
        file.close()
    assert seen == set(SlotState)


def test_a_writer_killed_at_any_moment_leaves_a_readable_slot(shm_dir: Path, spawn: Spawn) -> None:
    code = """
import msgspec
file = SlotFile(Path(sys.argv[1]), 0)
file.reserve(100_000)
file.remap()
file.write_state(SlotState.FREE)  # only such a slot is ever loaned; the one before may have left it READY
say("begin")
generation = file.header().generation
while True:
    generation += 1
    encoded = msgspec.msgpack.encode(Envelope("q", f"key-{generation}", "a", b"m" * (generation % 50)))
    file.write_loan(generation, encoded, generation % 90_000)
    file.write_state(SlotState.READY, sequence=generation)
    file.write_state(SlotState.LENT, sequence=generation, holder="h")
    file.write_state(SlotState.FREE)
"""
    generation = 0
    for _ in range(5):
        child = spawn(code, shm_dir)
        assert child.hear() == "begin"
        child.kill()
        file = SlotFile(shm_dir, 0)
        header = file.header()
        assert header.generation >= generation
        generation = header.generation
        if header.state in (SlotState.READY, SlotState.LENT):
            assert file.envelope().key == f"key-{generation}"
        file.close()


# --- the trainer's side ---


def test_a_trainer_reads_what_the_daemon_wrote(file: SlotFile, shm_dir: Path) -> None:
    body = bytes(np.random.default_rng(0).bytes(BODY_BYTES))
    fill(file, body=body)
    envelope, view = SlotView(shm_dir, 0).read(1)
    assert envelope == ENVELOPE
    assert bytes(view) == body


def test_a_trainers_view_cannot_be_written(file: SlotFile, shm_dir: Path) -> None:
    fill(file)
    _, view = SlotView(shm_dir, 0).read(1)
    assert view.readonly
    with pytest.raises(TypeError, match="read-only"):
        view[0] = 1
    array = np.frombuffer(view, np.uint8)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True
    assert bytes(file.body(0, BODY_BYTES)) == b"\x5a" * BODY_BYTES


@pytest.mark.parametrize("generation", [0, 1, 3, 1 << 64])
def test_another_generation_than_was_lent_is_refused(file: SlotFile, shm_dir: Path, generation: int) -> None:
    fill(file, generation=2)
    view = SlotView(shm_dir, 0)
    with pytest.raises(HostError, match=f"another generation; got 2; limit {generation}"):
        view.read(generation)
    assert view.read(2)[0] == ENVELOPE


def test_damage_to_the_envelope_reaches_no_trainer(file: SlotFile, shm_dir: Path) -> None:
    fill(file)
    with slot_path(shm_dir, 0).open("r+b") as opened:
        opened.seek(-1, os.SEEK_END)
        opened.write(b"\xff")
    with pytest.raises(HostError, match="envelope is damaged"):
        SlotView(shm_dir, 0).read(1)
    with pytest.raises(HostError, match="envelope is damaged"):
        file.envelope()


def test_a_mapping_from_before_the_slot_grew_is_refused_and_a_new_one_reads_it(
    file: SlotFile, shm_dir: Path
) -> None:
    early = SlotView(shm_dir, 0)
    fill(file)
    assert early.file_bytes == BODY_OFFSET
    with pytest.raises(HostError, match="envelope is damaged"):
        early.read(1)
    late = SlotView(shm_dir, 0)
    assert late.file_bytes == FILE_BYTES
    assert late.read(1)[0] == ENVELOPE


def test_old_views_stay_valid_after_growth_remap_close_and_unlink(file: SlotFile, shm_dir: Path) -> None:
    fill(file)
    view = SlotView(shm_dir, 0)
    _, theirs = view.read(1)
    array = np.frombuffer(theirs, np.uint8)
    mine = file.body(0, BODY_BYTES)
    file.reserve(10 * FILE_BYTES)
    file.remap()
    # Both mappings show the same memory still.
    file.body(0, 1)[:] = b"\x77"
    assert (mine[0], array[0]) == (0x77, 0x77)
    file.close()
    gone = weakref.ref(view)
    del view
    assert gone() is None
    slot_path(shm_dir, 0).unlink()
    assert (bytes(mine[1:]), array[1:].tobytes()) == (b"\x5a" * (BODY_BYTES - 1),) * 2
    mine[1] = 0x66
    assert array[1] == 0x66


READ = """
view = SlotView(Path(sys.argv[1]), 0)
envelope, body = view.read(int(sys.argv[2]))
say(envelope.key, hashlib.sha256(body).hexdigest(), body.readonly)
"""


def test_an_unrelated_process_reads_a_slot_and_its_exit_unlinks_nothing(
    file: SlotFile, shm_dir: Path, spawn: Spawn
) -> None:
    body = bytes(np.random.default_rng(1).bytes(BODY_BYTES))
    fill(file, body=body)
    before = snapshot(shm_dir)
    inode = slot_path(shm_dir, 0).stat().st_ino
    for code in (READ, READ + "pause()", READ + "os._exit(3)"):
        child = spawn(code, shm_dir, 1)
        assert child.hear() == f"k {hashlib.sha256(body).hexdigest()} True"
        child.kill()
    failing = spawn(READ, shm_dir, 99)
    assert failing.finish() == 1
    assert snapshot(shm_dir) == before
    assert slot_path(shm_dir, 0).stat().st_ino == inode


def test_a_trainers_views_outlive_the_killed_daemon(shm_dir: Path, spawn: Spawn) -> None:
    daemon = spawn(
        """
import msgspec
file = SlotFile(Path(sys.argv[1]), 0)
file.reserve(50_000)
file.remap()
file.write_loan(1, msgspec.msgpack.encode(Envelope("q", "k", "a", b"")), 40_000)
file.body(0, 40_000)[:] = b"z" * 40_000
file.write_state(SlotState.READY, sequence=1)
say("ready")
pause()
""",
        shm_dir,
    )
    assert daemon.hear() == "ready"
    _, view = SlotView(shm_dir, 0).read(1)
    daemon.kill()
    assert bytes(view) == b"z" * 40_000
    slot_path(shm_dir, 0).unlink()
    assert bytes(view) == b"z" * 40_000


def test_what_is_no_slot_file_cannot_be_viewed(shm_dir: Path) -> None:
    makers: list[Any] = [
        lambda path: path.parent,
        lambda path: path.mkdir(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"notes"),
        lambda path: path.write_bytes(bytes(5000)),
        lambda path: path.symlink_to("nowhere"),
    ]
    for index, make in enumerate(makers):
        make(slot_path(shm_dir, index))
        with pytest.raises(HostError, match="slot"):
            SlotView(shm_dir, index)
