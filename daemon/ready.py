"""What a daemon tells its parent once it is ready."""

from __future__ import annotations

import msgspec


class Ready(msgspec.Struct, frozen=True):
    """Where a daemon that is ready can be reached."""

    pid: int
    control_endpoint: str
    data_endpoint: str
    trainer_endpoint: str
    pool: str
    http_endpoint: str = ""
