"""Where the soak's processes live: folders and ports of their own, and what is left in them."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from forebay.wire import MIB, HostError

from .soak_faults import LEASE_S, MAX_VERSIONS_BEHIND, ORCHESTRATORS, ROLES
from .soak_keys import ClientKeyFiles, SoakKeys
from .soak_payload import MAX_BODY_BYTES
from .soak_wire import address, free_ports

_SHM: Final = Path("/dev/shm")
_SLOT_SLACK_BYTES: Final = 2 * MIB
"""A slot's header and envelope, rounded up to a huge page."""
_REMEMBERED_KEYS: Final = 10_000
_FILL_STEPS: Final = (16 * MIB, MIB, 4096)
_ALSO_BYTES: Final = MIB + _REMEMBERED_KEYS * 2048
"""Sockets, locks, the pool's own header, and its journal of outcomes."""


class Place:
    """Folders and endpoints of one soak; a context manager that removes them.

    Args:
        shm: Folder on a tmpfs.
        keep: Folder for books and logs, or None for a temporary one.
        slots: Of the pool.
        has_keys: Whether the daemon asks for keys.

    Attributes:
        books: Folder of books and logs.
        is_private_mount: Whether the shared memory is a mount that nobody else uses.
        control_port: Of the daemon.
        data_port: Of the daemon.
        proxy_ports: By orchestrator: of its proxy's control and data.
        keys: The daemon's and its clients'; None if there are none.

    Raises:
        HostError: A folder cannot be had.
    """

    def __init__(self, shm: Path, keep: str | None, slots: int, *, has_keys: bool = False) -> None:
        try:
            self.is_private_mount = shm.is_mount() and shm.resolve() != _SHM and not any(shm.iterdir())
            self._shared = Path(tempfile.mkdtemp(prefix=f"forebay-{os.geteuid()}-soak-", dir=shm))
            self._private = Path(tempfile.mkdtemp(prefix="forebay-soak-"))
            self.books = Path(keep) if keep is not None else self._private / "books"
            self.books.mkdir(parents=True, exist_ok=True)
            for name in ROLES:
                for kind in ("jsonl", "log"):
                    (self.books / f"{name}.{kind}").unlink(missing_ok=True)
        except OSError as error:
            raise HostError(f"the soak's folders cannot be made ({error})") from error
        self._slots = slots
        self._fills = 0
        # All at once: nobody listens there yet, so a second look would find the same.
        self.control_port, self.data_port, *rest = free_ports(2 + 2 * len(ORCHESTRATORS))
        self.proxy_ports = dict(zip(ORCHESTRATORS, zip(rest[::2], rest[1::2], strict=True), strict=True))
        self._temp = self._private / "tmp"
        self._runtime = self._private / "run"
        for folder in (self._temp, self._runtime):
            folder.mkdir(mode=0o700)
        self.keys = SoakKeys(self._private) if has_keys else None

    @property
    def pool(self) -> Path:
        """The pool's folder."""
        return self._shared / "pool"

    @property
    def filler(self) -> Path:
        """Where a file lies that fills the mount up."""
        return self._shared / "filler"

    @property
    def control_endpoint(self) -> str:
        """The daemon's own, without the proxy."""
        return address(self.control_port)

    @property
    def data_endpoint(self) -> str:
        """The daemon's own, without the proxy."""
        return address(self.data_port)

    @property
    def trainer_endpoint(self) -> str:
        """Where trainers attach."""
        return f"ipc://{self._shared}/trainer.sock"

    def keys_of(self, client: str) -> ClientKeyFiles:
        """Returns the key files of a client; empty if there are none."""
        return ClientKeyFiles() if self.keys is None else self.keys.of(client)

    def environment(self) -> dict[str, str]:
        """Returns the environment of every process: this one's, without Forebay's, and with its own folders."""
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "TUNIX_"))
        }
        return inherited | {
            "TMPDIR": str(self._temp),
            "XDG_RUNTIME_DIR": str(self._runtime),
            "JAX_PLATFORMS": "cpu",
        }

    def daemon_environment(self, *, keep_pool: bool) -> dict[str, str]:
        """Returns the environment of a daemon."""
        settings: dict[str, object] = {
            "control_endpoint": self.control_endpoint,
            "data_endpoint": self.data_endpoint,
            "trainer_endpoint": self.trainer_endpoint,
            "pool": self.pool,
            "keep_pool": keep_pool,
            "slots": self._slots,
            "slot_initial_bytes": MIB,
            "slot_max_bytes": MAX_BODY_BYTES,
            "remembered_keys": _REMEMBERED_KEYS,
            "fill_lease_s": LEASE_S,
            "max_versions_behind": MAX_VERSIONS_BEHIND,
            "drain_s": 1,
            "log_level": "info",
        }
        if self.keys is not None:
            settings |= self.keys.of_daemon()
        return self.environment() | {f"FOREBAY_{name.upper()}": str(value) for name, value in settings.items()}

    def bytes_beyond_limit(self) -> int:
        """Returns how much more the pool takes now than its slots may."""
        limit = self._slots * (MAX_BODY_BYTES + _SLOT_SLACK_BYTES) + _ALSO_BYTES
        return max(0, sum(_bytes_of(path) for path in self.pool.glob("**/*")) - limit)

    def left_behind(self) -> dict[str, int]:
        """Returns what the soak's processes left: path and bytes, at least one each."""
        folders = (self._shared, self._temp, self._runtime)
        found = (path for folder in folders for path in folder.glob("**/*"))
        return {str(path): max(1, _bytes_of(path)) for path in found if not path.is_dir() or path == self.pool}

    def fill(self) -> None:
        """Takes all that is left of the mount, until `make_room`. Only for a private one."""
        self._fills += 1
        with self.filler.open("ab") as file:
            taken = file.tell()
            for step in _FILL_STEPS:
                # Others take pages meanwhile, so what is free now may not be in a moment.
                with contextlib.suppress(OSError):
                    while True:
                        os.posix_fallocate(file.fileno(), taken, step)
                        taken += step

    def make_room(self) -> None:
        """Ends a fill; the last one gives back what was taken."""
        self._fills -= 1
        if not self._fills:
            self.filler.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _remove((self._shared, self._private))


def _bytes_of(path: Path) -> int:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return 0
    return 0 if path.is_dir() else status.st_blocks * 512


def _remove(folders: Iterable[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
