"""The staging queue's numbers."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class QueueStats:
    """A queue's numbers at one moment. Totals count from the queue's start or its last reset.

    Attributes:
        queued: Entries that wait on the host, or on their way to the device.
        on_device: Entries that wait on the device.
        in_step: Staged entries that a step has taken and not dispatched; they count towards the cap.
        inline_steps: Steps that use a payload which was not staged, and are not dispatched.
        staged: Entries that were entered.
        taken: Entries that a step took.
        promotions: Transfers of entries to the device that were completed.
        promoted_bytes: Their bytes on the host.
        wait_prev_s: Seconds for which they waited for what the device or the link to it did before.
        issue_s: Seconds for which starting them took.
        transfer_s: Seconds from their start to their completion.
        demotions: Entries that were brought back to the host.
        failures: Transfers that failed and may succeed later.
        inline: Payloads that a step transferred itself, by cause: `keyless`, `missing`, `mismatch`, `rejected`.
        prepared: Payloads that were on the device already.
        drops: Entries that were dropped before any step had them, by cause: `replaced`, `rejected`; `mismatch`,
            `superseded`, `prepared` where a step was given other bytes for their key; `stale`; `pool_gone`. A
            reset starts these counts anew as well.
    """

    queued: int
    on_device: int
    in_step: int
    inline_steps: int
    staged: int
    taken: int
    promotions: int
    promoted_bytes: int
    wait_prev_s: float
    issue_s: float
    transfer_s: float
    demotions: int
    failures: int
    inline: Mapping[str, int]
    prepared: int
    drops: Mapping[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Returns all of it in plain dicts, for JSON and metrics."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}

    def __repr__(self) -> str:
        always = ("queued", "on_device", "in_step", "staged", "taken", "promotions")
        others = ("inline_steps", "demotions", "failures", "inline", "prepared", "drops")
        values = self.as_dict()
        shown = [*always, *(name for name in others if values[name])]
        return f"QueueStats({', '.join(f'{name}={values[name]}' for name in shown)})"


@dataclasses.dataclass(slots=True)
class Totals:
    """What is counted; each field is the one of its name in `QueueStats`."""

    staged: int = 0
    taken: int = 0
    promotions: int = 0
    promoted_bytes: int = 0
    wait_prev_s: float = 0.0
    issue_s: float = 0.0
    transfer_s: float = 0.0
    demotions: int = 0
    failures: int = 0
    prepared: int = 0
    inline: Counter[str] = dataclasses.field(default_factory=Counter)
    drops: Counter[str] = dataclasses.field(default_factory=Counter)

    def frozen(self, *, queued: int, on_device: int, in_step: int, inline_steps: int) -> QueueStats:
        """Returns the totals with the present counts."""
        totals = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        totals |= {name: MappingProxyType(dict(totals[name])) for name in ("inline", "drops")}
        return QueueStats(queued=queued, on_device=on_device, in_step=in_step, inline_steps=inline_steps, **totals)
