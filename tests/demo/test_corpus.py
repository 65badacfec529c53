"""Trajectories are real text, in one order, whatever cannot be read."""

from pathlib import Path

import pytest

from forebay.demo.corpus import Corpus, source_files
from forebay.wire import HostError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b.py").write_bytes(b"0123456789")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "z.py").write_bytes(b"abcdefgh")
    (tmp_path / "notes.txt").write_bytes(b"x" * 100)
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "other.py").write_bytes(b"x" * 100)
    return tmp_path


def taken(corpus: Corpus, *lengths: int) -> list[tuple[str, bytes]]:
    found = [corpus.next_trajectory(length) for length in lengths]
    return [(each.name, each.tokens.tobytes()) for each in found]


def test_trajectories_follow_one_another_in_a_file(folder: Path) -> None:
    assert taken(Corpus(folder), 4, 6) == [("b.py@0", b"0123"), ("b.py@4", b"456789")]


def test_a_trajectory_lies_in_one_file(folder: Path) -> None:
    assert taken(Corpus(folder), 4, 7) == [("b.py@0", b"0123"), ("a/z.py@0", b"abcdefg")]


def test_after_the_last_file_comes_the_first(folder: Path) -> None:
    assert [name for name, _ in taken(Corpus(folder), 8, 8, 8)] == ["b.py@0", "a/z.py@0", "b.py@0"]


def test_only_source_files_outside_of_installed_packages_are_read(folder: Path) -> None:
    assert [path.name for path in source_files(folder)] == ["b.py", "z.py"]


def test_what_cannot_be_read_is_skipped(folder: Path) -> None:
    (folder / "a.py").symlink_to(folder / "gone")
    assert taken(Corpus(folder), 10) == [("b.py@0", b"0123456789")]


def test_too_little_text_is_an_error_that_says_how_much_is_needed(folder: Path) -> None:
    with pytest.raises(HostError, match="at least 11 bytes"):
        Corpus(folder).next_trajectory(11)


def test_default_corpus_is_the_standard_library() -> None:
    name, tokens = Corpus().next_trajectory(512)
    assert name.endswith(".py@0")
    assert len(tokens) == 512
