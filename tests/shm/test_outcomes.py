"""The journal of outcomes: what was recorded is found by the next daemon, whatever happened to this one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.shm import JOURNAL_NAME, Outcome, OutcomeJournal, read_outcomes
from forebay.shm.outcomes import RECORD_BYTES, RECORDS_PER_KEY, TRAINED_PER_KEY
from forebay.wire import HostError, LocalError, MicroBatchState, RefusalCode, ShmFullError

from .processes import Spawn, fill_up

NAME = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda text: len(text.encode()) <= 256)
OUTCOMES = st.builds(
    Outcome,
    queue=NAME,
    key=NAME,
    attempt=NAME,
    state=st.sampled_from(MicroBatchState),
    words=st.text(st.characters(codec="utf-8"), max_size=2000),
    was_published=st.booleans(),
    was_reset=st.booleans(),
    code=st.none() | st.sampled_from(RefusalCode),
    holder=st.text("0123456789abcdef", max_size=64),
)

WRITER = """
journal = OutcomeJournal(Path(sys.argv[1]), keys=50)
number = int(sys.argv[2])
while True:
    number += 1
    journal.write(
        Outcome(queue="q", key=str(number), attempt="a" * (number % 200), state=MicroBatchState.CONSUMED)
    )
    if number == int(sys.argv[2]) + 200:
        say("go on")
"""


def outcome(key: str, words: str = "", state: MicroBatchState = MicroBatchState.CONSUMED) -> Outcome:
    return Outcome(queue="train", key=key, attempt="1", state=state, words=words)


def keys(outcomes: list[Outcome]) -> list[str]:
    return [found.key for found in outcomes]


def reopened(pool: Path, keys: int = 2) -> list[Outcome]:
    journal = OutcomeJournal(pool, keys=keys)
    journal.close()
    return journal.take_found()


def test_a_new_journal_is_empty_private_and_has_all_its_pages(shm_dir: Path) -> None:
    journal = OutcomeJournal(shm_dir, keys=100)
    status = (shm_dir / JOURNAL_NAME).stat()
    assert (journal.found, status.st_mode & 0o777) == ([], 0o600)
    assert status.st_blocks * 512 >= status.st_size == 100 * RECORDS_PER_KEY * RECORD_BYTES
    assert [file.name for file in shm_dir.iterdir()] == [JOURNAL_NAME]
    journal.close()
    journal.close()


def test_the_last_records_are_found_in_order_and_gone_on_with(shm_dir: Path) -> None:
    for first in (0, 3, 6):
        journal = OutcomeJournal(shm_dir, keys=2)
        expected = [str(number) for number in range(max(0, first - 4), first)]
        assert keys(journal.take_found()) == expected
        assert journal.found == []
        for number in range(first, first + 3):
            journal.write(outcome(str(number)))
        journal.close()
    assert keys(read_outcomes(shm_dir / JOURNAL_NAME)) == ["5", "6", "7", "8"]


@pytest.mark.parametrize("new_keys", [1, 3])
def test_a_journal_of_another_size_is_written_anew_with_what_fits(shm_dir: Path, new_keys: int) -> None:
    journal = OutcomeJournal(shm_dir, keys=2)
    for number in range(9):
        journal.write(outcome(str(number)))
    journal.close()
    assert keys(reopened(shm_dir, new_keys)) == ["5", "6", "7", "8"]
    for _ in range(2):
        assert keys(reopened(shm_dir, new_keys)) == ["5", "6", "7", "8"][-new_keys * TRAINED_PER_KEY :]


@given(found=OUTCOMES)
def test_any_record_comes_back_as_it_was_but_for_words_that_have_no_room(
    tmp_path_factory: pytest.TempPathFactory, found: Outcome
) -> None:
    pool = tmp_path_factory.mktemp("pool")
    journal = OutcomeJournal(pool, keys=1)
    journal.write(found)
    journal.close()
    [read] = read_outcomes(pool / JOURNAL_NAME)
    assert found.words.startswith(read.words)
    assert len(read.words.encode()) >= min(len(found.words.encode()), 60)
    assert msgspec.structs.replace(found, words=read.words) == read


def test_what_was_dropped_pushes_out_nothing_that_was_trained(shm_dir: Path) -> None:
    for _ in range(2):
        journal = OutcomeJournal(shm_dir, keys=2)
        for number in range(50):
            journal.write(outcome(f"dropped {number}", state=MicroBatchState.DROPPED))
            if number in (3, 30):
                journal.write(outcome(f"trained {number}"))
        journal.close()
        assert keys(read_outcomes(shm_dir / JOURNAL_NAME))[-4:] == [
            "trained 3",
            "trained 30",
            "dropped 48",
            "dropped 49",
        ]


def test_a_rewriting_that_was_cut_short_leaves_nothing_behind(shm_dir: Path) -> None:
    reopened(shm_dir)
    (shm_dir / f"{JOURNAL_NAME}.new").write_bytes(b"half")
    assert reopened(shm_dir) == []
    assert [file.name for file in shm_dir.iterdir()] == [JOURNAL_NAME]


def test_names_that_can_never_fit_are_a_mistake_of_ours_and_write_nothing(shm_dir: Path) -> None:
    journal = OutcomeJournal(shm_dir, keys=1)
    with pytest.raises(LocalError, match="a record of the journal; got 1"):
        journal.write(outcome("k" * RECORD_BYTES, "words"))
    journal.close()
    assert reopened(shm_dir) == []


@pytest.mark.parametrize("damage", [0, 8, 16, 20, 40])
def test_a_record_that_was_torn_is_left_out_and_the_others_are_found(shm_dir: Path, damage: int) -> None:
    journal = OutcomeJournal(shm_dir, keys=2)
    for key in ("a", "b", "c"):
        journal.write(outcome(key))
    journal.close()
    with (shm_dir / JOURNAL_NAME).open("r+b") as file:
        file.seek(RECORD_BYTES + damage)
        byte = file.read(1)
        file.seek(RECORD_BYTES + damage)
        file.write(bytes([byte[0] ^ 0xFF]))
    assert keys(reopened(shm_dir)) == ["a", "c"]


@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * (4 * RECORD_BYTES), bytes(6 * RECORD_BYTES)])
def test_a_file_of_garbage_is_an_empty_journal(shm_dir: Path, content: bytes) -> None:
    (shm_dir / JOURNAL_NAME).write_bytes(content)
    journal = OutcomeJournal(shm_dir, keys=2)
    assert journal.found == []
    journal.write(outcome("a"))
    journal.close()
    assert keys(reopened(shm_dir)) == ["a"]


def test_what_is_no_file_is_an_error_that_says_what_to_do(shm_dir: Path) -> None:
    (shm_dir / JOURNAL_NAME).mkdir()
    with pytest.raises(HostError, match=r"the journal .*outcomes cannot be read \(Is a directory\); remove it"):
        OutcomeJournal(shm_dir, keys=2)


def test_a_full_mount_is_refused_for_a_new_journal_and_no_matter_for_one_that_is_there(small_mount: Path) -> None:
    reopened(small_mount)
    fill_up(small_mount, 0)
    journal = OutcomeJournal(small_mount, keys=2)
    journal.write(outcome("a"))
    journal.close()
    with pytest.raises(ShmFullError, match=str(small_mount)):
        OutcomeJournal(small_mount, keys=100)
    assert sorted(file.name for file in small_mount.iterdir()) == ["filler", JOURNAL_NAME]
    assert keys(reopened(small_mount)) == ["a"]


def test_a_writer_that_is_killed_leaves_an_unbroken_row_of_records(shm_dir: Path, spawn: Spawn) -> None:
    last = 0
    for _ in range(5):
        writer = spawn(WRITER, shm_dir, last)
        writer.hear()
        writer.kill()
        numbers = [int(key) for key in keys(reopened(shm_dir, 50))]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        # The one that was being written may be torn, over the oldest.
        assert len(numbers) >= min(numbers[-1], 50 * TRAINED_PER_KEY) - 1
        assert numbers[-1] > last
        last = numbers[-1]
