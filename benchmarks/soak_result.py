"""What the soak is given, and what it comes to."""

from __future__ import annotations

import msgspec

from forebay.wire import SettingError

from .soak_accounts import Recovery
from .soak_faults import Fault, chosen


class SoakSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is run.

    Attributes:
        minutes: For which faults are injected; what is under way then is finished.
        faults: `all`, `none`, or kinds of faults with commas between them.
        seed: Of the plan of faults, and of the micro-batches.
        slots: Slots of the daemon's pool.
        in_flight: Keys that each orchestrator has under way at once.
        watchdog_s: Seconds without a trained micro-batch, though all are at work, after which the soak gives up.
        shm: Folder for the pool, on a tmpfs. Only a mount of its own, with nothing in it, is ever filled up.
        keep: Folder for books and logs, which stay there; default a temporary one.
        keys: Whether the daemon lets in nobody without a key that it knows.
    """

    minutes: float = 3.0
    faults: str = "all"
    seed: int = 0
    slots: int = 4
    in_flight: int = 3
    watchdog_s: float = 60.0
    shm: str = "/dev/shm"
    keep: str | None = None
    keys: bool = True

    def __post_init__(self) -> None:
        for name, low, high in (
            ("minutes", 0.05, 10_000),
            ("slots", 1, 1024),
            ("in_flight", 1, 64),
            ("watchdog_s", 5, 3600),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise SettingError(f"setting {name}", got=value, limit=f"{low} to {high}")
        chosen(self.faults)


class SoakResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came out; the rules are in `soak_accounts`.

    Attributes:
        micro_batches: Trained to their end.
        kills: Processes killed by SIGKILL.
        terms: Processes ended by SIGTERM.
        stalls: Processes stopped, and continued after a while.
        cuts: Cuts of the network between an orchestrator and the daemon.
        resets: Of the queue, that were answered.
        stale: Keys that were told stale.
        strangers: Visits by those without the keys or rights for what they asked.
        lost: Keys without a trace.
        duplicated: Keys trained twice.
        wrong_bytes: Digests that differ.
        stuck_slots: Slots that nobody has, and that are not FREE.
        leaked_bytes: What is left behind.
        unexplained_errors: What no fault explains.
        retrained_after_death: Keys that were rightly trained anew.
        reported_lost: Keys that were reported lost or dropped by name.
        recovery_s: By fault: seconds from its injection until the next micro-batch was trained.
        seed: Of the run.
        faults: The kinds that were injected.
        plan: What was to be injected; it follows from seed, minutes and kinds alone.
        injected: How many of each fault were.
        told: How often each outcome, refusal and error was told to orchestrators.
        explained: How often a trouble was explained, by the trouble and why.
        unexplained: Each trouble that no fault explains, in words.
        suspects: What the books say of keys behind `lost`, `duplicated` and `wrong_bytes`, some of them. Where a
            daemon began anew in between, the plan and `daemon_starts_at_s` tell.
        daemon_starts_at_s: Seconds from the plan's begin at which each daemon was at work.
        left_behind: What was found after the end.
        left_out: What could not be injected, and why.
        stand_ins: What stood for something else.
        settings: As they were set.
    """

    micro_batches: int
    kills: int
    terms: int
    stalls: int
    cuts: int
    resets: int
    stale: int
    strangers: int
    lost: int
    duplicated: int
    wrong_bytes: int
    stuck_slots: int
    leaked_bytes: int
    unexplained_errors: int
    retrained_after_death: int
    reported_lost: int
    recovery_s: dict[str, Recovery]
    seed: int
    faults: list[str]
    plan: list[Fault]
    injected: dict[str, int]
    told: dict[str, int]
    explained: dict[str, int]
    unexplained: list[str]
    suspects: dict[str, list[str]]
    daemon_starts_at_s: list[float]
    left_behind: list[str]
    left_out: list[str]
    stand_ins: list[str]
    settings: SoakSettings

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost, trained twice, wrong, stuck, left behind or unexplained."""
        return not any(
            (
                self.lost,
                self.duplicated,
                self.wrong_bytes,
                self.stuck_slots,
                self.leaked_bytes,
                self.unexplained_errors,
            )
        )
