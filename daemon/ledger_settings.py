"""What the ledger's decisions depend on; `Settings` says where the values come from, and their defaults."""

from __future__ import annotations

import dataclasses

from forebay.wire import Limits


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """What the ledger's decisions depend on.

    Attributes:
        limits: Upper bounds on one micro-batch.
        fill_lease_s: Silence after which a filling slot is taken back.
        await_lease_s: Silence after which an `Await` is forgotten.
        max_waiting_offers: Offers that may wait for a slot.
        remembered_keys: Finished micro-batches whose outcome is remembered.
        remembered_events: Moments that are kept for inspectors.
        least_level: Of what is logged, as the logging module counts.
        max_peers: Connections that are known at once.
        max_queues: Queues that hold a micro-batch, have a trainer, or were told a version.
        max_waits: `Await`s of all peers.
        max_waits_per_peer: `Await`s of one peer.
        max_waiting_bytes: Manifests and bodies of the offers that wait for a slot.
        max_private_bytes: Of private memory, at which the daemon ends; 0 for no bound, and then nobody looks.
        max_versions_behind: Policy versions that a micro-batch may be behind its queue's; -1 for any number.
        max_age_s: Age in seconds from which on a micro-batch is stale; 0 for none.
    """

    limits: Limits
    fill_lease_s: float
    await_lease_s: float
    max_waiting_offers: int
    remembered_keys: int
    remembered_events: int
    least_level: int
    max_peers: int
    max_queues: int
    max_waits: int
    max_waits_per_peer: int
    max_waiting_bytes: int
    max_private_bytes: int
    max_versions_behind: int
    max_age_s: float
