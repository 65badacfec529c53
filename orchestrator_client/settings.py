"""The orchestrator's settings for staging ahead: from the environment variables that launchers set."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Final

from forebay.wire import CODECS, DataProtection, check_settings, read_variables, setting, settings_from

AUTO: Final = "auto"
CODEC_SETTINGS: Final = (AUTO, *CODECS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorSettings:
    """All settings of one orchestrator; each is described by its `Setting` metadata.

    Raises:
        SettingError: A value has the wrong type or is out of range.
    """

    max_staged_batches: int = setting(
        2,
        "micro-batches staged ahead of the one in training; 0 = nothing is staged, all go inline",
        0,
        1024,
        variable="TUNIX_MAX_STAGED_BATCHES",
    )
    stage_timeout_s: float = setting(
        600.0,
        "seconds that one staging may take before the micro-batch goes inline",
        0.001,
        86400.0,
    )

    codec: str = setting(
        AUTO,
        "how arrays travel; auto looks at the data and at how fast the link is",
        choices=CODEC_SETTINGS,
    )
    connections: int = setting(1, "connections for bulk data that a client makes", 1, 64)
    client_key_file: str = setting("", "this client's own secret key file, for tcp endpoints; empty = no keys")
    server_key_file: str = setting("", "public key file of the daemon, by which it is known")
    worker_key_file: str = setting("", "public key file of the trainer's worker; empty = the same as the daemon's")
    least_data_protection: str = setting(
        DataProtection.NONE.value,
        "the least that must guard bulk data at tcp, else nothing is sent; none = whatever the server has",
        choices=tuple(kind.value for kind in DataProtection),
    )

    def __post_init__(self) -> None:
        check_settings(self)


def load_orchestrator_settings(
    given: Mapping[str, Any] | None = None, *, environment: Mapping[str, str] | None = None
) -> OrchestratorSettings:
    """Reads the settings: what is given wins over the environment.

    Args:
        given: Values by setting name; None means not given.
        environment: Variables, default this process's own.

    Raises:
        SettingError: A value has the wrong type or is out of range; an empty one is wrong too.
    """
    variables = read_variables(OrchestratorSettings, os.environ if environment is None else environment)
    return settings_from(OrchestratorSettings, variables, given or {})
