"""Slot files: the daemon's writable side and the trainer's read-only one."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from forebay.wire import HostError

from .deployment import pool_fault
from .layout import (
    BODY_OFFSET,
    HEADER_BYTES,
    MAGIC,
    Envelope,
    SlotHeader,
    format_header,
    read_envelope,
    read_header,
    write_envelope,
    write_field,
)
from .locations import share
from .memory import grow_mapped, reserve_pages, reserved_bytes
from .states import SlotState


def slot_path(pool: Path, index: int) -> Path:
    """Returns the file of a slot."""
    return pool / f"slot-{index:04d}"


class SlotFile:
    """The daemon's side of one slot: a file that only grows, and a writable mapping of all of it.

    Args:
        pool: The pool's folder.
        index: Slot index.
        gid: A group that may read it; None for nobody but this user.

    Raises:
        HostError: An existing file is not a slot file of this version.
        ShmFullError: No room for its first page.
    """

    def __init__(self, pool: Path, index: int, *, gid: int | None = None) -> None:
        self.index = index
        self._path = slot_path(pool, index)
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise HostError(
                f"slot file {self._path} cannot be opened ({error.strerror})",
                remedy="remove it, or choose another pool",
            ) from error
        try:
            share(self._path, private=0o600, shared=0o640, gid=gid, fd=self._fd)
            head = os.pread(self._fd, HEADER_BYTES, 0)
            # The magic is written last: without it a daemon was killed before the header was whole.
            fresh = not any(head[: len(MAGIC)])
            if fresh or read_header(memoryview(head)).state is SlotState.FREE:
                self._cut_holes()
            reserve_pages(self._fd, BODY_OFFSET, path=self._path)
            self._grown: mmap.mmap | None = None
            self._use(mmap.mmap(self._fd, 0))
            if fresh:
                format_header(self._view)
        except BaseException:
            self.close()
            raise

    @property
    def file_bytes(self) -> int:
        """Bytes that are reserved and mapped."""
        return len(self._memory)

    def _cut_holes(self) -> None:
        """Takes back a growth that a killed daemon had begun; only FREE slots grow, and from the front.

        A write to a page that cannot be had ends the process.
        """
        reserved = reserved_bytes(self._fd)
        if reserved < os.fstat(self._fd).st_size:
            os.ftruncate(self._fd, reserved)

    def reserve(self, file_bytes: int) -> None:
        """Reserves and touches pages up to a size. Slow; meant for a thread beside the loop.

        The mapping in use is not replaced: `remap` does that, on the loop's thread, when nobody writes there.

        Raises:
            ShmFullError: The mount has too little room; the size is what it was.
        """
        self._grown = grow_mapped(self._fd, file_bytes, path=self._path)

    def remap(self) -> None:
        """Takes the mapping that `reserve` made into use. Views of the old one stay valid."""
        grown, self._grown = self._grown, None
        if grown is not None:
            self._use(grown)

    def _use(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._view = memoryview(memory)

    def body(self, offset: int, length: int) -> memoryview:
        """Returns a writable view of a piece of the body."""
        start = BODY_OFFSET + offset
        return self._view[start : start + length]

    def header(self) -> SlotHeader:
        """Reads the header."""
        return read_header(self._view)

    def envelope(self) -> Envelope:
        """Reads the envelope; raises HostError if it is damaged."""
        return read_envelope(self._view, self.header())

    def write_loan(self, generation: int, envelope: bytes, body_bytes: int) -> None:
        """Records a loan: FILLING, with what is to come."""
        write_envelope(self._view, envelope, generation, body_bytes)
        write_field(self._view, "generation", generation)
        write_field(self._view, "state", SlotState.FILLING)

    def write_state(
        self,
        state: SlotState,
        *,
        sequence: int = 0,
        holder: str = "",
        ready_at: float = 0.0,
        lent_at: float = 0.0,
    ) -> None:
        """Records a move, so that a daemon killed between two stores leaves a header that says the truth.

        Args:
            state: What the slot is now. With FREE, place and times stay as they were.
            sequence: Place in the queue.
            holder: Name of the trainer's lock, if one has it.
            ready_at: Monotonic second in which it was published.
            lent_at: Monotonic second in which it was lent; 0 if it is not.
        """
        if state is not SlotState.FREE:
            write_field(self._view, "sequence", sequence)
            write_field(self._view, "ready_at", ready_at)
            write_field(self._view, "lent_at", lent_at)
        if holder:
            write_field(self._view, "holder", holder.encode())
        write_field(self._view, "state", state)
        if not holder:
            # Not before: a LENT slot that names no holder could never be taken back.
            write_field(self._view, "holder", b"")

    def close(self) -> None:
        """Closes the file; a second call does nothing. Views that others still hold stay valid."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class SlotView:
    """The trainer's side of one slot: a read-only mapping that outlives the daemon and this object.

    Args:
        pool: The pool's folder.
        index: Slot index.

    Raises:
        HostError: The file is missing or not a slot file of this version.
    """

    def __init__(self, pool: Path, index: int) -> None:
        path = slot_path(pool, index)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise pool_fault(path, error) from error
        try:
            self._memory = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:  # a folder; an empty file
            raise HostError(f"slot file {path} cannot be mapped ({error})") from error
        finally:
            os.close(fd)
        self._view = memoryview(self._memory)
        read_header(self._view)

    @property
    def file_bytes(self) -> int:
        """Bytes that are mapped."""
        return len(self._memory)

    def header(self) -> SlotHeader:
        """Reads the header, as it is now."""
        return read_header(self._view)

    def read(self, generation: int) -> tuple[Envelope, memoryview]:
        """Returns the envelope and a read-only view of the body.

        Args:
            generation: The one that was lent.

        Raises:
            HostError: The slot is at another generation, or its envelope is damaged.
        """
        header = read_header(self._view)
        if header.generation != generation:
            raise HostError("the slot is at another generation", got=header.generation, limit=generation)
        envelope = read_envelope(self._view, header)
        return envelope, self._view[BODY_OFFSET : BODY_OFFSET + header.body_bytes]
