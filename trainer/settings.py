"""The trainer's settings; two of its variables are those that the launchers people already have set."""

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Mapping
from typing import Any

from forebay.shm import default_endpoint
from forebay.wire import (
    GIB,
    MIB,
    DataProtection,
    check_data_reach,
    check_endpoint,
    check_exposure,
    check_settings,
    open_to_all,
    protection_of,
    read_variables,
    setting,
    settings_from,
)


class StageMode(enum.StrEnum):
    """What a staged engine does with the micro-batches that are handed to it.

    Attributes:
        OFF: It declines to stage, and works as without Forebay.
        STAGE: Staged transfers overlap the device's work.
        SERIALIZE: A staged transfer starts only when the device has finished what was dispatched, so that nothing
            overlaps: the baseline for A/B runs.
    """

    OFF = "off"
    STAGE = "stage"
    SERIALIZE = "serialize"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """All settings of one trainer; each is described by its `Setting` metadata.

    Raises:
        SettingError: A value has the wrong type, is out of range or is none of the choices.
    """

    stage_batch: str = setting(
        StageMode.OFF.value,
        "whether staged transfers happen, and whether they overlap the device's work",
        choices=tuple(mode.value for mode in StageMode),
        variable="TUNIX_STAGE_BATCH",
    )
    max_device_batches: int = setting(
        1,
        "micro-batches on the device beside the running one; 0 = unlimited",
        0,
        1024,
        variable="TUNIX_STAGE_MAX_DEVICE_BATCHES",
    )
    worker_endpoint: str = setting(
        lambda: default_endpoint("worker"), "where orchestrators call the worker, tcp or ipc"
    )
    worker_data_endpoint: str = setting(
        lambda: default_endpoint("worker_data"), "where orchestrators send inline payloads, tcp or ipc"
    )
    inline_max_bytes: int = setting(8 * GIB, "bytes of one inline payload", 4096, 1 << 40)
    inline_total_bytes: int = setting(
        16 * GIB, "bytes of the inline payloads of all calls that are not over", 4096, 1 << 40
    )
    inline_lease_s: float = setting(
        30.0, "seconds of silence after which an inline payload on its way is given up", 0.1, 3600
    )
    max_answer_bytes: int = setting(MIB, "bytes of what a method returns; more is left out", 1024, 64 * MIB)
    remembered_calls: int = setting(1024, "answers that are kept for repeated calls", 1, 1 << 20)
    max_connections: int = setting(
        96,
        "connections to each of the worker's endpoints",
        1,
        1 << 16,
        "fits where a process may have 1024 descriptors",
        variable="FOREBAY_WORKER_MAX_CONNECTIONS",
    )
    worker_drain_s: float = setting(60.0, "seconds that calls may take to finish once it is to stop", 0, 86_400)
    key_file: str = setting("", "the worker's secret key file, for tcp endpoints; empty = no keys")
    authorised_file: str = setting("", "TOML file of the clients that may enter, with keys and rights")
    data_protection: str = setting(
        DataProtection.ENCRYPTED.value,
        "how keys guard the worker's data endpoint",
        choices=(DataProtection.ENCRYPTED.value, DataProtection.AUTHENTICATED.value),
    )
    insecure: bool = setting(False, "let everybody in who reaches a tcp endpoint of the worker without keys")
    group: str = setting("", "group that may use the worker's ipc endpoints too; empty = this user alone")

    def __post_init__(self) -> None:
        check_settings(self)
        for name, address in self._endpoints.items():
            check_endpoint(name, address)
        check_exposure(
            self._endpoints,
            key_file=self.key_file,
            authorised_file=self.authorised_file,
            insecure=self.insecure,
        )
        check_data_reach(self._endpoints)

    @property
    def _endpoints(self) -> dict[str, str]:
        return {"worker_endpoint": self.worker_endpoint, "worker_data_endpoint": self.worker_data_endpoint}

    @property
    def protection_of_data(self) -> DataProtection:
        """What guards the data endpoint: `data_protection` where there are keys and it is a tcp address."""
        return protection_of(
            self.worker_data_endpoint, key_file=self.key_file, data_protection=self.data_protection
        )

    @property
    def open_to_all(self) -> list[str]:
        """Addresses at which everybody may enter who reaches them from another host."""
        return open_to_all(self._endpoints, key_file=self.key_file)

    @property
    def mode(self) -> StageMode:
        """`stage_batch`, as the member that it names."""
        return StageMode(self.stage_batch)


def load_trainer_settings(
    given: Mapping[str, Any] | None = None, *, environment: Mapping[str, str] | None = None
) -> TrainerSettings:
    """Reads the settings: what is given wins over the environment.

    Args:
        given: Values by setting name; None means not given.
        environment: Variables, default this process's own.

    Raises:
        SettingError: A value has the wrong type, is out of range or is none of the choices; an empty one is wrong
            too.
    """
    variables = read_variables(TrainerSettings, os.environ if environment is None else environment)
    return settings_from(TrainerSettings, variables, given or {})
