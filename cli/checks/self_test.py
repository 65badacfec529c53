"""One micro-batch through a private daemon into shared memory, read back from the slot's file."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np

from forebay.daemon import LocalDaemon, Settings, local_daemon
from forebay.daemon.embedded import private_pool, remove_orphans
from forebay.orchestrator_client import Refusal, Staged, StagingClient
from forebay.shm.slot_file import SlotView
from forebay.sockets import stopped_by_sigterm
from forebay.wire import MIB, DataProtection, ForebayError, HostError, Status, decode_manifest

from .case import Case
from .findings import SelfTest
from .look_memory import free_in, look_at_group, look_at_room

_PAYLOAD_BYTES: Final = 64 * MIB
_NEED_BYTES: Final = 2 * _PAYLOAD_BYTES
"""Twice as much: what runs on this host already shall not be without room meanwhile."""

_LIMIT_S: Final = 20.0
"""Seconds that the start, and then the staging, may take."""


def run_self_test(case: Case) -> SelfTest:
    """Stages one micro-batch and reads it back; leaves nothing behind."""
    free = free_in(look_at_room(case), look_at_group(case))
    if free < _NEED_BYTES:
        return SelfTest(_NEED_BYTES, free)
    # Beside the pool, to use its mount.
    remove_orphans(case.pool.parent)
    folder = private_pool(case.pool.parent)
    try:
        with stopped_by_sigterm(_interrupt):
            seconds, wrong = _through(folder)
    except ForebayError as error:
        return SelfTest(_NEED_BYTES, free, trouble=str(error))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return SelfTest(_NEED_BYTES, free, _PAYLOAD_BYTES, seconds, wrong)


def _interrupt() -> None:
    raise KeyboardInterrupt


def _through(folder: Path) -> tuple[float, tuple[str, ...]]:
    tree = {
        "random": np.random.default_rng().integers(0, 256, _PAYLOAD_BYTES, np.uint8),
        "scalar": np.array(7, np.int64),
        "none": np.zeros((0, 3), np.float32),
    }
    endpoints: dict[str, Any] = {
        f"{name}_endpoint": f"ipc://{folder}/{name}.sock" for name in ("control", "data", "trainer")
    }
    sizes: dict[str, Any] = {
        "slots": 1,
        "slot_initial_bytes": _PAYLOAD_BYTES + MIB,
        "slot_max_bytes": _PAYLOAD_BYTES + MIB,
    }
    with local_daemon(
        timeout_s=_LIMIT_S, pool=str(folder), remembered_keys=16, drain_s=0, **sizes, **endpoints
    ) as daemon:
        staged, status = asyncio.run(_stage(daemon, tree))
        return staged.seconds, _differing(folder, status, tree)


async def _stage(daemon: LocalDaemon, tree: dict[str, Any]) -> tuple[Staged, Status]:
    async with StagingClient(
        daemon.control_endpoint,
        name="forebay doctor",
        timeout_s=_LIMIT_S,
        codec="raw",
        least_data_protection=DataProtection.NONE,
    ) as client:
        staged = await client.stage(tree, key="self-test", queue="self-test", wait_s=0, timeout_s=_LIMIT_S)
        if isinstance(staged, Refusal):
            raise HostError(f"the private daemon refused a micro-batch: {staged.words}")
        return staged, await client.status()


def _differing(pool: Path, status: Status, tree: dict[str, Any]) -> tuple[str, ...]:
    """Returns the paths of leaves that are not in the slot's file as they were sent."""
    envelope, body = SlotView(pool, 0).read(status.slots[0].generation)
    manifest = decode_manifest(envelope.manifest, Settings().limits)
    found = dict(zip(manifest.paths, manifest.views(body), strict=True))
    sent = {f"['{name}']": leaf for name, leaf in tree.items()}
    return tuple(path for path, leaf in sent.items() if path not in found or not _is_same(found[path], leaf))


def _is_same(found: Any, sent: Any) -> bool:
    return bool(found.dtype == sent.dtype and found.shape == sent.shape and np.array_equal(found, sent))
