"""The pool: a folder in shared memory with a lock, a header and one file a slot."""

from __future__ import annotations

import contextlib
import errno
import mmap
import shutil
from pathlib import Path

import msgspec

from forebay.wire import HostError, Peer, printable

from .layout import BODY_OFFSET, LAYOUT_VERSION
from .locations import make_private_folder
from .locks import FileLock, is_held
from .memory import free_bytes, shm_full
from .slot_file import SlotFile, slot_path
from .slot_table import Slot
from .states import SlotState

LOCK_NAME = "lock"
HEADER_NAME = "pool.json"
HOLDERS_NAME = "holders"


class PoolHeader(msgspec.Struct, frozen=True):
    """The pool's own header, a JSON file that people and trainers can read.

    Attributes:
        layout_version: Of the slot files.
        epoch: The daemon run that owns the pool.
    """

    layout_version: int
    epoch: str


def holder_path(pool: Path, holder: str) -> Path:
    """Returns the lock file of a holder.

    Raises:
        HostError: The name could lead out of the holders' folder.
    """
    if not (0 < len(holder) <= 64 and holder.isascii() and holder.isalnum()):
        raise HostError("not a holder's name", got=holder, limit="1 to 64 letters and digits")
    return pool / HOLDERS_NAME / holder


class Pool:
    """The slots of one daemon, created or adopted.

    A pool that a killed daemon left behind is adopted: what its slots hold is kept, and nobody has to clean up.

    Args:
        path: The folder; its parent must exist.
        slot_count: Slots wanted; an adopted pool may have more.
        slot_bytes: File size that every slot has at least.
        peer: This daemon, for whoever finds the pool locked.
        epoch: This run of the daemon.

    Raises:
        HeldError: Another daemon is alive on this pool.
        ShmFullError: Too little room; nothing is left behind but an adopted pool's own slots.
        HostError: The folder is not this user's, or a file in it is not a slot; what was found stays.
    """

    def __init__(self, path: Path, *, slot_count: int, slot_bytes: int, peer: Peer, epoch: str) -> None:
        self.path = path
        self._lock = _lock_folder(path, peer)
        self.files: list[SlotFile] = []
        found = _present_slots(path)
        try:
            self._reserve(slot_count, max(slot_bytes, BODY_OFFSET))
            self._describe(epoch)
        except BaseException:
            for index in _present_slots(path).keys() - found.keys():
                slot_path(path, index).unlink()
            self.close(keep=bool(found))
            raise

    def __repr__(self) -> str:
        return f"Pool({str(self.path)!r}, {len(self.files)} slots)"

    def _reserve(self, slot_count: int, slot_bytes: int) -> None:
        present = _present_slots(self.path)
        count = max([slot_count, *(index + 1 for index in present)])
        need = sum(max(0, slot_bytes - present.get(index, 0)) for index in range(count))
        if need > free_bytes(self.path):
            raise shm_full(self.path, need)
        for index in range(count):
            file = SlotFile(self.path, index)
            self.files.append(file)
            file.reserve(slot_bytes)
            file.remap()

    def _describe(self, epoch: str) -> None:
        header = msgspec.json.encode(PoolHeader(LAYOUT_VERSION, epoch))
        try:
            (self.path / HOLDERS_NAME).mkdir(mode=0o700, exist_ok=True)
            (self.path / HEADER_NAME).write_bytes(header)
            self._remove_dead_holders()
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise shm_full(self.path, mmap.PAGESIZE) from error
            raise HostError(f"the pool {self.path} cannot be described ({error})") from error

    def _remove_holders(self) -> None:
        holders = self.path / HOLDERS_NAME
        with contextlib.suppress(OSError):  # gone already, or a foreign file is in it and stays
            for holder in holders.iterdir():
                if holder.name.isalnum():
                    holder.unlink(missing_ok=True)
            holders.rmdir()

    def _remove_dead_holders(self) -> None:
        """Removes the locks of trainers that died while no daemon watched them."""
        for holder in (self.path / HOLDERS_NAME).iterdir():
            if not is_held(holder):
                holder.unlink(missing_ok=True)

    def found_slots(self) -> list[Slot]:
        """Returns every slot as its header tells it; a half-filled one is FREE again."""
        slots = []
        for file in self.files:
            header = file.header()
            state = header.state
            if state is SlotState.FILLING:
                state = SlotState.FREE
                file.write_state(state)
            slots.append(Slot(file.index, state, header.generation, file.file_bytes))
        return slots

    def close(self, *, keep: bool = False) -> None:
        """Gives the pool up; a second call does nothing.

        Args:
            keep: Leave the files for the next daemon instead of removing them. Either way the views that a
                trainer has stay valid.
        """
        for file in self.files:
            file.close()
        if keep or not self._lock.is_in_place():
            # Not in place: somebody removed the folder, and what lies there now may be another daemon's.
            self._lock.close()
            return
        # First of all, so that a removal cut short never looks like the pool of before to a trainer that has its
        # old slots mapped. A trainer may be adding its lock right now.
        self._remove_holders()
        for index in _present_slots(self.path):
            slot_path(self.path, index).unlink(missing_ok=True)
        (self.path / HEADER_NAME).unlink(missing_ok=True)
        self._lock.close(remove=True)
        # Foreign files, or a daemon that just came, keep the folder.
        with contextlib.suppress(OSError):
            self.path.rmdir()


def read_pool_header(path: Path) -> PoolHeader:
    """Reads a pool's own header.

    Raises:
        HostError: There is no pool at that path, seen from this process.
    """
    try:
        return msgspec.json.decode((path / HEADER_NAME).read_bytes(), type=PoolHeader)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise HostError(
            f"the daemon's pool {path} cannot be entered from here ({printable(str(error))})",
            remedy="daemon and trainer must see the same /dev/shm and run under the same user",
        ) from error


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


def _lock_folder(path: Path, peer: Peer) -> FileLock:
    make_private_folder(path, "pool")
    try:
        return FileLock(path / LOCK_NAME, peer)
    except HostError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
    # Whoever held it has just removed it.
    make_private_folder(path, "pool")
    return FileLock(path / LOCK_NAME, peer)


def _present_slots(path: Path) -> dict[int, int]:
    """Returns index -> file bytes of the slot files in a pool's folder."""
    names = {file: file.name.removeprefix("slot-") for file in path.glob("slot-*")}
    indices = {file: int(digits) for file, digits in names.items() if digits.isdecimal()}
    return {index: file.lstat().st_size for file, index in indices.items() if file == slot_path(path, index)}
