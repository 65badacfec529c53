"""The daemon's settings: from flags, environment and a TOML file, in that order."""

from __future__ import annotations

import dataclasses
import logging
import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forebay.shm import default_endpoint, default_pool
from forebay.wire import (
    GIB,
    MAX_CHUNK_BYTES,
    MIB,
    DataProtection,
    Limits,
    SettingError,
    check_data_reach,
    check_endpoint,
    check_exposure,
    check_settings,
    open_to_all,
    printable,
    protection_of,
    read_variables,
    setting,
    settings_from,
)

from .http_address import http_address
from .ledger_settings import LedgerSettings

_MAX_PORT = 65_535
_AWAIT_LEASE_S = 60.0
_KNOWN_PEERS = 4096


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of one daemon; each is described by its `Setting` metadata."""

    control_endpoint: str = setting(
        lambda: default_endpoint("control"), "where orchestrators and inspectors connect, tcp or ipc"
    )
    data_endpoint: str = setting(
        lambda: default_endpoint("data"), "where orchestrators send bulk data, tcp or ipc"
    )
    trainer_endpoint: str = setting(
        lambda: default_endpoint("trainer"), "where trainers of this host connect, ipc"
    )
    pool: str = setting(lambda: str(default_pool()), "folder of the pool, on a tmpfs")
    keep_pool: bool = setting(False, "leave the pool for the next daemon at an orderly stop", reloadable=True)
    slots: int = setting(4, "slots in the pool", 1, 1024, "two staged ahead, one lent, one filling")
    slot_initial_bytes: int = setting(64 * MIB, "bytes reserved for each slot at the start", 4096, 1 << 40)
    slot_max_bytes: int = setting(
        8 * GIB, "bytes that a slot may grow to", 4096, 1 << 40, "a 5.15 GB micro-batch and room"
    )
    chunk_bytes: int = setting(
        MIB, "bytes of one chunk on the wire", 4096, MAX_CHUNK_BYTES, "measured: raw TCP's speed at 1 MiB"
    )
    max_leaves: int = setting(4096, "arrays in one micro-batch", 1, 1 << 20)
    max_depth: int = setting(32, "containers around a leaf", 1, 64)
    max_manifest_bytes: int = setting(MIB, "bytes of an encoded manifest", 1024, 64 * MIB)
    max_eager_bytes: int = setting(
        64 << 10, "bytes of a small micro-batch that may travel with its offer; 0 = none", 0, MIB
    )
    max_waiting_offers: int = setting(256, "offers that may wait for a slot", 1, 1 << 16, reloadable=True)
    max_connections: int = setting(
        1024,
        "connections to each of the three endpoints",
        1,
        1 << 16,
        "lowered where the descriptors do not suffice",
    )
    max_private_bytes: int = setting(
        2 * GIB,
        "bytes of private memory at which the daemon ends in order and keeps its pool; 0 = no bound",
        0,
        1 << 40,
        "measured: below 100 MiB in use",
        reloadable=True,
    )
    control_messages: int = setting(
        64, "messages buffered per peer on the control and trainer endpoints, a bound on memory", 1, 1 << 16
    )
    max_queues: int = setting(
        1024, "queues that hold a micro-batch, have a trainer, or were told a version", 1, 1 << 16, reloadable=True
    )
    max_waits: int = setting(65_536, "waits for a key's state, of all peers together", 1, 1 << 24, reloadable=True)
    max_waits_per_peer: int = setting(4096, "waits for a key's state, of one peer", 1, 1 << 24, reloadable=True)
    max_waiting_bytes: int = setting(
        256 * MIB,
        "bytes of manifests and bodies of the offers that wait for a slot",
        1024,
        1 << 40,
        reloadable=True,
    )
    remembered_keys: int = setting(
        10_000, "finished keys whose outcome is remembered, 3 KiB of shared memory each", 1, 1 << 20
    )
    remembered_events: int = setting(
        10_000, "moments that inspectors can still ask for, some 400 bytes each", 1, 1 << 20, "hours of large ones"
    )
    max_versions_behind: int = setting(
        -1,
        "policy versions behind its queue's up to which a micro-batch is trained; -1 = any",
        -1,
        1 << 31,
        reloadable=True,
    )
    max_age_s: float = setting(
        0.0, "seconds after which a micro-batch is dropped; 0 = none", 0, 1e9, reloadable=True
    )
    fill_lease_s: float = setting(
        10.0, "seconds of silence after which a filling slot is taken back", 0.1, 3600, reloadable=True
    )
    drain_s: float = setting(
        10.0, "seconds that what is filling may take to finish after SIGTERM", 0, 3600, reloadable=True
    )
    receive_threads: int = setting(1, "threads that receive, check and decode chunks", 1, 64)
    io_threads: int = setting(1, "threads that read chunks from the connections", 1, 64)
    receive_chunks: int = setting(
        4, "chunks buffered per sender, a bound on memory", 1, 1024, "4 MiB a sender; more are no faster"
    )
    key_file: str = setting("", "the daemon's secret key file, for tcp endpoints; empty = no keys")
    authorised_file: str = setting("", "TOML file of the clients that may enter, with keys and rights")
    data_protection: str = setting(
        DataProtection.ENCRYPTED.value,
        "how keys guard the data endpoint",
        choices=(DataProtection.ENCRYPTED.value, DataProtection.AUTHENTICATED.value),
    )
    insecure: bool = setting(False, "let everybody in who reaches a tcp endpoint without keys")
    group: str = setting("", "group that may use ipc endpoints and pool too; empty = this user alone")
    http_endpoint: str = setting(
        "", "HOST:PORT where health and metrics are served over HTTP, see docs/metrics.md; empty = nowhere"
    )
    log_level: str = setting(
        "info", "the least level that is logged", choices=("debug", "info", "warning", "error"), reloadable=True
    )
    log_format: str = setting(
        "text",
        "how the log is written: lines to read, or an object of JSON a line",
        choices=("text", "json"),
        reloadable=True,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.slot_initial_bytes > self.slot_max_bytes:
            raise SettingError(
                "setting slot_initial_bytes",
                got=self.slot_initial_bytes,
                limit=f"at most slot_max_bytes, {self.slot_max_bytes}",
            )
        self._check_endpoints()
        if not self.pool.startswith("/"):
            raise SettingError("setting pool", got=self.pool, limit="an absolute path, on a tmpfs")

    def _check_endpoints(self) -> None:
        # Here and not only where they are bound: by then the pool's lock is taken.
        for name, address in self._tcp_endpoints.items():
            check_endpoint(name, address)
        self._check_kinds()
        self._check_ports()
        check_exposure(
            self._tcp_endpoints,
            key_file=self.key_file,
            authorised_file=self.authorised_file,
            insecure=self.insecure,
        )
        self._check_differ()
        if self.http_endpoint:
            http_address(self.http_endpoint)

    def _check_kinds(self) -> None:
        check_data_reach(self._tcp_endpoints)
        if not self.trainer_endpoint.startswith("ipc:"):
            raise SettingError(
                "setting trainer_endpoint",
                got=self.trainer_endpoint,
                limit="an ipc address: trainers share this host's memory",
            )

    def _check_ports(self) -> None:
        for name, address in self._tcp_endpoints.items():
            port = address.rpartition(":")[2]
            if address.startswith("tcp:") and port.isdecimal() and int(port) > _MAX_PORT:
                raise SettingError(f"setting {name}", got=address, limit=f"a port up to {_MAX_PORT}")

    def _check_differ(self) -> None:
        addresses = (*self._tcp_endpoints.values(), self.trainer_endpoint)
        fixed = [address for address in addresses if not address.endswith(":*")]
        if len(set(fixed)) != len(fixed):
            raise SettingError(
                "settings control_endpoint, data_endpoint, trainer_endpoint",
                got=fixed,
                limit="three different addresses",
            )

    @property
    def protection_of_data(self) -> DataProtection:
        """What guards the data endpoint: `data_protection` where there are keys and it is a tcp address."""
        return protection_of(self.data_endpoint, key_file=self.key_file, data_protection=self.data_protection)

    @property
    def open_to_all(self) -> list[str]:
        """Addresses at which everybody may enter who reaches them from another host."""
        return open_to_all(self._tcp_endpoints, key_file=self.key_file)

    @property
    def _tcp_endpoints(self) -> dict[str, str]:
        return {"control_endpoint": self.control_endpoint, "data_endpoint": self.data_endpoint}

    @property
    def limits(self) -> Limits:
        """What senders are told that they may send."""
        return Limits(
            max_leaves=self.max_leaves,
            max_depth=self.max_depth,
            max_manifest_bytes=self.max_manifest_bytes,
            max_micro_batch_bytes=self.slot_max_bytes,
            chunk_bytes=self.chunk_bytes,
            max_eager_bytes=self.max_eager_bytes,
        )

    @property
    def ledger(self) -> LedgerSettings:
        """What the ledger needs to know."""
        return LedgerSettings(
            limits=self.limits,
            fill_lease_s=self.fill_lease_s,
            await_lease_s=_AWAIT_LEASE_S,
            max_waiting_offers=self.max_waiting_offers,
            remembered_keys=self.remembered_keys,
            remembered_events=self.remembered_events,
            least_level=logging.getLevelNamesMapping()[self.log_level.upper()],
            max_peers=max(_KNOWN_PEERS, self.max_connections),
            max_queues=self.max_queues,
            max_waits=self.max_waits,
            max_waits_per_peer=self.max_waits_per_peer,
            max_waiting_bytes=self.max_waiting_bytes,
            max_private_bytes=self.max_private_bytes,
            max_versions_behind=self.max_versions_behind,
            max_age_s=self.max_age_s,
        )


def load_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Settings:
    """Reads the settings: a flag wins over the environment, the environment over the file.

    Args:
        flags: Values by setting name; None means not given.
        environment: Variables, default this process's own; `FOREBAY_SLOTS` is the setting `slots`.
        file: A TOML file of settings; default the one that FOREBAY_CONFIG names, if any.

    Raises:
        SettingError: A value has the wrong type or range, or the file cannot be read or names an unknown
            setting.
    """
    environment = os.environ if environment is None else environment
    if file is None and "FOREBAY_CONFIG" in environment:
        file = Path(environment["FOREBAY_CONFIG"])
    from_file = read_settings_file(file) if file is not None else {}
    return settings_from(Settings, from_file, read_variables(Settings, environment), flags or {})


def read_settings_file(file: Path) -> dict[str, Any]:
    """Reads a TOML file of settings: values by name, not yet checked.

    Raises:
        SettingError: It cannot be read, or names an unknown setting.
    """
    try:
        values = tomllib.loads(_text_of(file))
    except (OSError, ValueError, RecursionError) as error:
        raise SettingError(f"the settings file {file} cannot be read: {printable(str(error))}") from error
    unknown = sorted(values.keys() - {field.name for field in dataclasses.fields(Settings)})
    if unknown:
        raise SettingError(f"the settings file {file} names unknown settings", got=unknown)
    return values


def _text_of(file: Path) -> str:
    # Without waiting: nobody may ever write to a pipe, and a running daemon reads its settings again in its loop.
    with open(file, opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError("it is no regular file, and no link to one")
        return stream.read()
