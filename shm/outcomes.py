"""The journal of outcomes: what became of the last micro-batches, for the next daemon.

A file in the pool, mapped and written in place, that survives a killed daemon as the slots do. It has two rings of
records of one size, all of whose pages are reserved at the start: a record always has room, and costs a copy of a
few hundred bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from forebay.wire import HostError, LocalError, MicroBatchState, RefusalCode

from .layout import MAX_COUNT
from .memory import AT_START, check_room, reserve_pages, taken_by, whole_pages

JOURNAL_NAME: Final = "outcomes"
RECORD_BYTES: Final = 1024
_FRESH: Final = ".new"
TRAINED_PER_KEY: Final = 2
"""Places for each remembered key that was trained: it was on the device, it is consumed."""
OTHERS_PER_KEY: Final = 1
"""Places for each that was dropped: a ring of their own, so that drops push out no key that was trained."""
RECORDS_PER_KEY: Final = TRAINED_PER_KEY + OTHERS_PER_KEY

_HEAD: Final = struct.Struct("<QQI")
"""Number of the record, from 1; xxh3-64 of its payload, seeded with that; length of the payload."""

_ROOM_BYTES: Final = RECORD_BYTES - _HEAD.size


class Outcome(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One record.

    Attributes:
        queue: Queue name.
        key: The micro-batch's key.
        attempt: The stage call that it is about.
        state: What became of it; READY where nothing did but `was_reset`.
        words: Why.
        was_published: Whether its bytes were ever complete.
        was_reset: Its queue was reset while the trainer held it: should it come back, it is dropped.
        code: What the attempt is refused with from now on, if it is.
        holder: The trainer that has it on its device.
        is_stale: Whether it was dropped because it was stale.
        is_forgotten: Whether nothing that was recorded of its key before counts any more.
        at: Second of CLOCK_MONOTONIC in which it came to its state.
    """

    queue: str
    key: str
    attempt: str
    state: MicroBatchState
    words: str = ""
    was_published: bool = False
    was_reset: bool = False
    code: RefusalCode | None = None
    holder: str = ""
    is_stale: bool = False
    is_forgotten: bool = False
    at: float = 0.0

    @property
    def is_of_training(self) -> bool:
        """Whether it says that a key was trained, or may have been."""
        if self.was_reset or self.is_forgotten:
            return False
        return self.state in (MicroBatchState.ON_DEVICE, MicroBatchState.CONSUMED, MicroBatchState.LOST)


_OUTCOME = msgspec.msgpack.Decoder(Outcome)


@dataclasses.dataclass(slots=True)
class _Ring:
    """Places that are written one after another: where they begin, how many, and which was written last."""

    first: int
    count: int
    last: int = -1

    def next_place(self) -> int:
        self.last = self.first + (self.last + 1 - self.first) % self.count if self.last >= 0 else self.first
        return self.last


class OutcomeJournal:
    """The journal of one pool: what was found there, and where to write what comes.

    One of another size than is asked for is written anew, and takes the old one's place at once: a daemon that is
    killed meanwhile leaves one of both. Otherwise it is gone on with, which takes no room.

    Args:
        pool: The pool's folder.
        keys: Keys that were trained that it has room for, and as many that were dropped.

    Attributes:
        found: What the daemon before left, oldest first.

    Raises:
        ShmFullError: No room for it; an old one is as it was.
        HostError: The file cannot be opened.
    """

    def __init__(self, pool: Path, *, keys: int, mode: int = 0o600) -> None:
        path = pool / JOURNAL_NAME
        trained, others = keys * TRAINED_PER_KEY, keys * OTHERS_PER_KEY
        self._rings = {True: _Ring(0, trained), False: _Ring(trained, others)}
        self._file_bytes = _file_bytes(keys)
        self._memory: mmap.mmap | None = None
        records = _read(path)
        self._number = max(records, default=0)
        self.found = [records[number][1] for number in sorted(records)]
        path.with_suffix(_FRESH).unlink(missing_ok=True)  # left by one that was killed while it wrote that
        if _has_size(path, self._file_bytes):
            self._memory = _map(path)
            for number in sorted(records):
                place, outcome = records[number]
                self._rings[outcome.is_of_training].last = place
        else:
            self._write_anew(path, mode)

    def _write_anew(self, path: Path, mode: int) -> None:
        fresh = path.with_suffix(_FRESH)
        check_room(path.parent, self._file_bytes, otherwise=AT_START)
        try:
            _reserve(fresh, self._file_bytes, mode)
            self._memory = _map(fresh)
            for outcome in self.found:
                self.write(outcome)
            fresh.replace(path)
        except BaseException:
            self.close()
            fresh.unlink(missing_ok=True)
            raise

    def take_found(self) -> list[Outcome]:
        """Returns `found`, and lets go of it."""
        found, self.found = self.found, []
        return found

    def write(self, outcome: Outcome) -> None:
        """Writes a record over the oldest one of its ring; words that it has no room for are cut off."""
        assert self._memory is not None, "the journal is closed"
        payload = _encode(outcome)
        self._number += 1
        start = self._rings[outcome.is_of_training].next_place() * RECORD_BYTES
        body = start + _HEAD.size
        self._memory[body : body + len(payload)] = payload
        checksum = xxhash.xxh3_64_intdigest(payload, seed=self._number)
        _HEAD.pack_into(self._memory, start, self._number, checksum, len(payload))

    def close(self) -> None:
        """Lets go of the file, which stays; a second call does nothing."""
        if self._memory is not None:
            self._memory.close()
        self._memory = None


def journal_need(pool: Path, keys: int) -> int:
    """Returns what a journal for so many keys will take of the mount, in bytes: nothing where it is there already.

    What one that was killed while it wrote a new one has left there is free again before that, and counts as less.
    """
    path = pool / JOURNAL_NAME
    need = 0 if _has_size(path, _file_bytes(keys)) else whole_pages(_file_bytes(keys))
    return need - taken_by(path.with_suffix(_FRESH))


def _file_bytes(keys: int) -> int:
    return keys * RECORDS_PER_KEY * RECORD_BYTES


def _has_size(path: Path, nbytes: int) -> bool:
    return path.exists() and path.stat().st_size == nbytes


def read_outcomes(path: Path) -> list[Outcome]:
    """Reads a journal, oldest record first.

    A record that was being written when its daemon was killed is left out: nobody was told of it.

    Raises:
        HostError: The file cannot be read.
    """
    records = _read(path)
    return [records[number][1] for number in sorted(records)]


def _read(path: Path) -> dict[int, tuple[int, Outcome]]:
    """Returns place and record by number."""
    try:
        # Mapped, not read: most of it is empty, and a small daemon shall stay small.
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
            return dict(_records(content))
    except (FileNotFoundError, ValueError):  # an empty file cannot be mapped
        return {}
    except OSError as error:
        raise HostError(f"the journal {path} cannot be read ({error.strerror})", remedy="remove it") from error


def _records(content: mmap.mmap) -> Iterator[tuple[int, tuple[int, Outcome]]]:
    """Yields number, place and record of each place that holds a whole one."""
    for start in range(0, len(content) - RECORD_BYTES + 1, RECORD_BYTES):
        number, checksum, length = _HEAD.unpack_from(content, start)
        if not 0 < number <= MAX_COUNT:
            continue
        payload = content[start + _HEAD.size : start + _HEAD.size + min(length, _ROOM_BYTES)]
        if xxhash.xxh3_64_intdigest(payload, seed=number) == checksum:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                yield number, (start // RECORD_BYTES, _OUTCOME.decode(payload))


def _encode(outcome: Outcome) -> bytes:
    payload = msgspec.msgpack.encode(outcome)
    excess = len(payload) - _ROOM_BYTES
    if excess <= 0:
        return payload
    # Only the words are somebody's prose; names are bounded, and fit.
    words = outcome.words.encode()
    if excess > len(words):
        raise LocalError("a record of the journal", got=f"{len(payload)} bytes", limit=f"{_ROOM_BYTES} bytes")
    shortened = msgspec.structs.replace(outcome, words=words[: len(words) - excess].decode(errors="ignore"))
    return msgspec.msgpack.encode(shortened)


def _reserve(path: Path, nbytes: int, mode: int) -> None:
    """Makes a file with real pages: a write to one that tmpfs has no room for would end the process."""
    path.unlink(missing_ok=True)
    fd = _open(path, os.O_CREAT | os.O_EXCL, mode)
    try:
        reserve_pages(fd, nbytes, path=path)
    finally:
        os.close(fd)


def _map(path: Path) -> mmap.mmap:
    fd = _open(path, 0)
    try:
        return mmap.mmap(fd, 0)
    finally:
        os.close(fd)


def _open(path: Path, flags: int, mode: int = 0) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, mode)
    except OSError as error:
        raise HostError(
            f"the journal {path} cannot be opened ({error.strerror})", remedy="remove it, or choose another pool"
        ) from error
