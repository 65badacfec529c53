"""Upper bounds on what a worker's callers make it hold."""

from __future__ import annotations

import dataclasses

from forebay.wire import Limits


@dataclasses.dataclass(frozen=True, slots=True)
class CallLimits:
    """What the decisions depend on.

    Attributes:
        limits: Upper bounds on one payload.
        receive_lease_s: Silence after which a payload that is being received is given up.
        inline_bytes: Bytes that payloads of calls that are not over may take together.
        remembered_calls: Calls that are over whose answers are kept.
        waiting_calls: Calls that may be there at once and not be over.
    """

    limits: Limits
    receive_lease_s: float = 30.0
    inline_bytes: int = 16 << 30
    remembered_calls: int = 1024
    waiting_calls: int = 256
