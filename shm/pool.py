"""The pool: a folder in shared memory with a lock, a header and one file a slot."""

from __future__ import annotations

import contextlib
import errno
import mmap
import shutil
from collections.abc import Callable, Container, Mapping
from pathlib import Path

import msgspec

from forebay.wire import HostError, Peer

from .deployment import pool_fault
from .holders import make_holders, remove_dead_holders, remove_holders
from .layout import BODY_OFFSET, LAYOUT_VERSION, MAX_COUNT
from .locations import make_private_folder, share
from .locks import FileLock
from .memory import AT_START, check_room, shm_full, taken_by, whole_pages
from .mounts import check_in_memory
from .outcomes import JOURNAL_NAME, OutcomeJournal, journal_need
from .slot_file import SlotFile, slot_path
from .slot_table import Slot
from .states import SlotState

LOCK_NAME = "lock"
HEADER_NAME = "pool.json"


class PoolHeader(msgspec.Struct, frozen=True):
    """The pool's own header, a JSON file that people and trainers can read.

    Attributes:
        layout_version: Of the slot files.
        epoch: The daemon run that owns the pool.
    """

    layout_version: int
    epoch: str


class Pool:
    """The slots of one daemon, created or adopted.

    A pool that a killed daemon left behind is adopted: what its slots hold is kept, and nobody has to clean up.

    Args:
        path: The folder; its parent must exist.
        slot_count: Slots wanted; an adopted pool may have more.
        slot_bytes: File size that every slot has at least.
        remembered_keys: Finished keys that its journal of outcomes has room for.
        peer: This daemon, for whoever finds the pool locked.
        epoch: This run of the daemon.
        gid: A group whose trainers may attach: read slots, and lock their holders. None for this user alone.
        reserving: Called with the index of each slot and their number before it is reserved, which may take long.

    Attributes:
        outcomes: What became of the last micro-batches.

    Raises:
        HeldError: Another daemon is alive on this pool.
        ShmFullError: Too little room; nothing is left behind but an adopted pool's own slots.
        HostError: The folder is on a disk, or not this user's, or a file in it is not a slot; what was found
            stays.
    """

    def __init__(
        self,
        path: Path,
        *,
        slot_count: int,
        slot_bytes: int,
        remembered_keys: int,
        peer: Peer,
        epoch: str,
        gid: int | None = None,
        reserving: Callable[[int, int], None] = lambda _index, _count: None,
    ) -> None:
        self.path = path
        self._gid = gid
        self._reserving = reserving
        if path.parent.is_dir():
            check_in_memory(path)
        self._lock = _lock_folder(path, peer, gid)
        self.files: list[SlotFile] = []
        found = _present_slots(path)
        with contextlib.ExitStack() as undo:
            undo.callback(self._give_up, found)
            self._reserve(slot_count, max(slot_bytes, BODY_OFFSET), remembered_keys)
            self.outcomes = OutcomeJournal(path, keys=remembered_keys)
            undo.callback(self.outcomes.close)
            self._describe(epoch)
            undo.pop_all()

    def __repr__(self) -> str:
        return f"Pool({str(self.path)!r}, {len(self.files)} slots)"

    def _give_up(self, found: Mapping[int, int]) -> None:
        """Leaves what was found, and nothing else, after a start that failed."""
        for index in _present_slots(self.path).keys() - found.keys():
            slot_path(self.path, index).unlink()
        for file in self.files:
            file.close()
        self._let_go(keep=bool(found))

    def _reserve(self, slot_count: int, slot_bytes: int, remembered_keys: int) -> None:
        self._check_room(pool_need(self.path, slot_count, slot_bytes, remembered_keys))
        count = _slots_at_start(slot_count, _present_slots(self.path))
        for index in range(count):
            self._reserving(index, count)
            file = SlotFile(self.path, index, gid=self._gid)
            self.files.append(file)
            file.reserve(slot_bytes)
            file.remap()

    def _check_room(self, need: int) -> None:
        """Checks at once for all that a start takes: whoever enlarges a mount shall have to do that once."""
        taken = taken_by(self.path / LOCK_NAME)
        check_room(self.path, need + taken, taken_bytes=taken, otherwise=AT_START)

    def _describe(self, epoch: str) -> None:
        header = msgspec.json.encode(PoolHeader(LAYOUT_VERSION, epoch))
        try:
            make_holders(self.path, self._gid)
            (self.path / HEADER_NAME).write_bytes(header)
            share(self.path / HEADER_NAME, private=0o600, shared=0o640, gid=self._gid)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise shm_full(self.path, mmap.PAGESIZE, otherwise=AT_START) from error
            raise HostError(f"the pool {self.path} cannot be described ({error})") from error

    def found_slots(self) -> list[Slot]:
        """Returns every slot as its header tells it; a half-filled one is FREE again."""
        slots = []
        for file in self.files:
            header = file.header()
            state = header.state
            if state is SlotState.FILLING:
                state = SlotState.FREE
                file.write_state(state)
            # No header of ours counts that far; the next loan has to have a number.
            generation = header.generation if header.generation <= MAX_COUNT else 0
            slots.append(Slot(file.index, state, generation, file.file_bytes))
        return slots

    def remove_dead_holders(self, *, spare: Container[str] = ()) -> None:
        """Removes the locks of trainers that died while no daemon watched them.

        Args:
            spare: Names of those that are still to be told of.
        """
        remove_dead_holders(self.path, spare=spare)

    def close(self, *, keep: bool = False) -> None:
        """Gives the pool up; a second call does nothing.

        Args:
            keep: Leave the files for the next daemon instead of removing them. Either way the views that a
                trainer has stay valid.
        """
        for file in self.files:
            file.close()
        self.outcomes.close()
        self._let_go(keep=keep)

    def _let_go(self, *, keep: bool) -> None:
        if keep or not self._lock.is_in_place():
            # Not in place: somebody removed the folder, and what lies there now may be another daemon's.
            self._lock.close()
            return
        # First of all, so that a removal cut short never looks like the pool of before to a trainer that has its
        # old slots mapped. A trainer may be adding its lock right now.
        remove_holders(self.path)
        for index in _present_slots(self.path):
            slot_path(self.path, index).unlink(missing_ok=True)
        for name in (JOURNAL_NAME, HEADER_NAME):
            (self.path / name).unlink(missing_ok=True)
        self._lock.close(remove=True)
        # Foreign files, or a daemon that just came, keep the folder.
        with contextlib.suppress(OSError):
            self.path.rmdir()


def pool_need(path: Path, slot_count: int, slot_bytes: int, remembered_keys: int) -> int:
    """Returns what a pool takes of its mount beside what it has there already, and its lock, in bytes.

    Args:
        path: The folder, which need not be there yet.
        slot_count: See `Pool`.
        slot_bytes: File size that every slot has at least.
        remembered_keys: See `Pool`.
    """
    present = _present_slots(path)
    wanted = whole_pages(slot_bytes)
    slots = sum(max(0, wanted - present.get(i, 0)) for i in range(_slots_at_start(slot_count, present)))
    header = mmap.PAGESIZE - taken_by(path / HEADER_NAME)
    return slots + journal_need(path, remembered_keys) + header


def read_pool_header(path: Path) -> PoolHeader:
    """Reads a pool's own header.

    Raises:
        HostError: There is no pool at that path, seen from this process.
    """
    try:
        return msgspec.json.decode((path / HEADER_NAME).read_bytes(), type=PoolHeader)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise pool_fault(path / HEADER_NAME, error) from error


def remove_orphan(path: Path, peer: Peer) -> bool:
    """Removes a pool's folder, whatever is in it, if no daemon holds it.

    Args:
        path: The folder.
        peer: This process, for whoever finds the pool locked meanwhile.

    Returns:
        Whether it was an orphan and is gone.
    """
    if not (path / LOCK_NAME).exists():
        return False  # it is being made, or removed
    try:
        lock = FileLock(path / LOCK_NAME, peer)
    except HostError:
        return False
    shutil.rmtree(path, ignore_errors=True)
    lock.close()
    return not path.exists()


def _lock_folder(path: Path, peer: Peer, gid: int | None) -> FileLock:
    make_private_folder(path, "pool", gid)
    try:
        return FileLock(path / LOCK_NAME, peer)
    except HostError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
    # Whoever held it has just removed it.
    make_private_folder(path, "pool", gid)
    return FileLock(path / LOCK_NAME, peer)


def _slots_at_start(slot_count: int, present: Mapping[int, int]) -> int:
    return max([slot_count, *(index + 1 for index in present)])


def _present_slots(path: Path) -> dict[int, int]:
    """Returns index -> reserved bytes of the slot files in a pool's folder."""
    names = {file: file.name.removeprefix("slot-") for file in path.glob("slot-*")}
    indices = {file: int(digits) for file, digits in names.items() if digits.isdecimal()}
    return {index: taken_by(file) for file, index in indices.items() if file == slot_path(path, index)}
