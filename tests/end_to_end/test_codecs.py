"""Micro-batches in every codec, over several threads and connections, or with their offer: all bits the same."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import forebay
from forebay import LocalDaemon, Staged, StagingClient, SteadyPace, TrainerHandle
from forebay.orchestrator_client.codec_choice import choose_codecs
from forebay.trainer.slot_reader import SlotReader
from forebay.wire import (
    BITSHUFFLE_LZ4,
    CODECS,
    MIB,
    RAW,
    SHUFFLE_LZ4,
    Lend,
    decode_chunk,
    unflatten,
)

from ..wire.trees import REGISTRY, assert_same, trees
from .processes import EVENT_S, StartDaemon, all_free, see
from .served import Served, talk

every_setting = pytest.mark.parametrize("codec", ["auto", *CODECS])
RETRY_S = 30.0
"""So long that nothing is sent twice."""

Ask = Callable[[StagingClient], Awaitable[None]]


def expert_ids(nbytes: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Makes rows of expert ids of which the last two fifths are padding."""
    ids = np.random.default_rng(seed).integers(0, 512, (8, nbytes // 16)).astype(np.int16)
    ids[:, int(0.6 * ids.shape[1]) :] = -1
    return ids


def micro_batch(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "experts": expert_ids(3 * MIB, seed),
        "noise": np.frombuffer(rng.bytes(MIB + 12), np.float32),
        "losses": np.linspace(-3, 0, 100_001, dtype=np.float32).astype(ml_dtypes.bfloat16),
        "mask": rng.random((1000, 301)) < 0.5,
        "strided": rng.integers(0, 9, (500, 600), np.int32)[::2, ::3],
        "small": [np.frombuffer(rng.bytes(size), np.uint8) for size in (0, 1, 63, 64, 65, 1000)],
        "0-d": np.float64(-0.0),
        "empty": np.zeros((4, 0, 3), np.int64),
        "names": ("text", seed, None, float("nan")),
    }


def with_client(daemon: LocalDaemon, ask: Ask, **options: Any) -> None:
    async def run() -> None:
        options.setdefault("registry", REGISTRY)
        async with StagingClient(daemon.control_endpoint, retry_s=RETRY_S, **options) as client:
            await ask(client)

    asyncio.run(run())


async def stage(client: StagingClient, tree: Any, key: str = "k") -> Staged:
    staged = await client.stage(tree, key=key, timeout_s=EVENT_S)
    assert isinstance(staged, Staged), staged
    return staged


async def seen_by_the_trainer(client: StagingClient, daemon: LocalDaemon, key: str = "k") -> Any:
    """Reads a key's slot as the trainer does."""
    [slot] = [slot for slot in (await client.status()).slots if slot.key == key]
    lend = Lend(slot=slot.index, generation=slot.generation, key=key, file_bytes=slot.slot_bytes, on_credit=False)
    _, tree = SlotReader(daemon.pool, client._welcome.limits).read(lend)
    return unflatten(tree.structure, tree.leaves, registry=REGISTRY)


async def arrives(client: StagingClient, daemon: LocalDaemon, tree: Any, key: str = "k") -> Staged:
    staged = await stage(client, tree, key)
    assert_same(await seen_by_the_trainer(client, daemon, key), tree)
    return staged


def wire_bytes(staged: Staged) -> int:
    return sum(leaf.wire_bytes for leaf in staged.leaves)


# --- in every codec ---


@every_setting
def test_every_bit_arrives_in_every_codec_and_it_is_told_how(start_daemon: StartDaemon, codec: str) -> None:
    daemon = start_daemon()

    async def ask(client: StagingClient) -> None:
        staged = await arrives(client, daemon, micro_batch())
        leaves = {leaf.path: leaf for leaf in staged.leaves}
        experts, noise = leaves["['experts']"], leaves["['noise']"]
        assert sum(leaf.payload_bytes for leaf in staged.leaves) == staged.payload_bytes
        assert noise.wire_bytes == noise.payload_bytes == MIB + 12
        if codec in (RAW, "auto"):
            assert wire_bytes(staged) == staged.payload_bytes, "nothing is known of the link yet"
        else:
            assert 0 < experts.wire_bytes < 0.7 * experts.payload_bytes
        chosen = {"auto": (BITSHUFFLE_LZ4, RAW)}.get(codec, (codec, codec))
        assert (experts.codec, noise.codec) == chosen

    with_client(daemon, ask, codec=codec)


@pytest.mark.parametrize("codec", [SHUFFLE_LZ4, BITSHUFFLE_LZ4])
def test_a_trainer_gets_what_was_encoded_bit_for_bit_on_its_device(start_daemon: StartDaemon, codec: str) -> None:
    daemon, tree = start_daemon(), micro_batch()
    sent = {name: tree[name] for name in ("experts", "noise", "losses", "mask")}

    async def ask(client: StagingClient) -> None:
        await stage(client, sent)

    with_client(daemon, ask, codec=codec)
    with forebay.attach(endpoint=daemon.trainer_endpoint) as queue, queue.take(timeout_s=EVENT_S) as batch:
        assert_same({name: np.asarray(batch.tree[name]) for name in sent}, sent)
    see(daemon, all_free)


def test_on_a_slow_link_expert_ids_are_encoded_once_its_rate_is_known(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(slots=2)
    # By a clock of its own: how fast the samples are encoded must not depend on what else this host does.
    ticks = itertools.count()
    choose = functools.partial(choose_codecs, clock=lambda: next(ticks) * 1e-4)
    monkeypatch.setattr("forebay.orchestrator_client.sending.choose_codecs", choose)

    async def ask(client: StagingClient) -> None:
        first = await arrives(client, daemon, {"experts": expert_ids(48 * MIB)}, "first")
        assert 24 * MIB < wire_bytes(first) < 46 * MIB
        # The next one is encoded from its first chunk on.
        second = await arrives(client, daemon, {"experts": expert_ids(4 * MIB, 1)}, "second")
        assert wire_bytes(second) < 0.7 * second.payload_bytes

    with_client(daemon, ask, codec="auto", pace=SteadyPace(40 * MIB))


@pytest.mark.parametrize("codec", [RAW, BITSHUFFLE_LZ4])
def test_several_threads_and_connections_mix_nothing(start_daemon: StartDaemon, codec: str) -> None:
    daemon = start_daemon(slots=6, receive_threads=3, io_threads=2)
    sent = {f"k{seed}": micro_batch(seed) for seed in range(6)}

    async def ask(client: StagingClient) -> None:
        await asyncio.gather(*(stage(client, tree, key) for key, tree in sent.items()))
        for key, tree in sent.items():
            assert_same(await seen_by_the_trainer(client, daemon, key), tree)
        counters = (await client.status()).counters
        assert not [name for name in counters if name.startswith("chunk_")], counters

    with_client(daemon, ask, codec=codec, connections=2)


# --- to a worker ---


@every_setting
def test_inline_payloads_arrive_in_every_codec(shm_dir: Path, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[Any] = []
    decoded: list[int] = []

    def counted(codec: str, frame: Any, target: memoryview) -> None:
        decoded.append(target.nbytes)
        decode_chunk(codec, frame, target)

    async def run(handle: TrainerHandle) -> None:
        await handle.call("keep", micro_batch())

    monkeypatch.setattr("forebay.sockets.chunk_receiver.decode_chunk", counted)
    with Served(shm_dir, methods={"keep": got.append}) as served:
        talk(served.endpoint, run, codec=codec)
    assert_same(got.pop(), micro_batch())
    assert bool(decoded) == (codec in (SHUFFLE_LZ4, BITSHUFFLE_LZ4))


# --- with their offer ---

ODD: dict[str, Any] = {
    "0-d": {"x": np.array(-0.0), "y": np.int8(-3)},
    "bfloat16": [np.frombuffer(b"\x01\x80\xff\x7f\x00\x80", ml_dtypes.bfloat16)],
    "one array alone": np.arange(5, dtype=np.int16),
    "zero-size": {"a": np.zeros((0, 7), np.float32), "b": np.arange(3), "c": np.zeros((2, 0), np.int8)},
    "gaps": [np.full(size, 255, np.uint8) for size in (1, 63, 64, 65, 130)],
    "up to the limit": np.full(64 << 10, 7, np.uint8),
    "static alone": {"name": "text", "n": (1, None, float("nan"))},
    "nothing": (),
}


def test_small_ones_come_with_their_offer_bit_for_bit(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(slots=len(ODD))

    async def ask(client: StagingClient) -> None:
        for key, tree in ODD.items():
            staged = await arrives(client, daemon, tree, key)
            assert wire_bytes(staged) == 0, f"{key} came in chunks"
        status = await client.status()
        assert status.queues[0].ready == tuple(ODD)
        assert "eager_body_wrong" not in status.counters

    with_client(daemon, ask)


def test_any_small_tree_comes_with_its_offer_bit_for_bit(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(slots=1)
    with asyncio.Runner() as runner:
        client = StagingClient(daemon.control_endpoint, registry=REGISTRY, retry_s=RETRY_S)
        runner.run(client.__aenter__())

        @given(tree=trees)
        @settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
        def comes(tree: Any) -> None:
            # The slot of the one before is free at once: the same key again.
            assert wire_bytes(runner.run(arrives(client, daemon, [tree]))) == 0

        try:
            comes()
        finally:
            runner.run(client.close())


@pytest.mark.parametrize(
    ("settings_of_daemon", "options", "nbytes"),
    [({}, {}, (64 << 10) + 1), ({"max_eager_bytes": 0}, {}, 100), ({}, {"pace": SteadyPace(100 * MIB)}, 100)],
    ids=["too large", "none may", "paced"],
)
def test_others_come_in_chunks(
    start_daemon: StartDaemon, settings_of_daemon: dict[str, Any], options: dict[str, Any], nbytes: int
) -> None:
    daemon = start_daemon(**settings_of_daemon)

    async def ask(client: StagingClient) -> None:
        assert wire_bytes(await arrives(client, daemon, {"x": np.full(nbytes, 3, np.int8)})) == nbytes

    with_client(daemon, ask, **options)


# --- what the environment says ---


@pytest.mark.parametrize(("given_codec", "is_encoded"), [(None, True), (RAW, False)])
def test_the_environment_names_the_codec_unless_the_caller_does(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch, given_codec: str | None, is_encoded: bool
) -> None:
    monkeypatch.setenv("FOREBAY_CODEC", BITSHUFFLE_LZ4)
    daemon = start_daemon()

    async def ask(client: StagingClient) -> None:
        staged = await arrives(client, daemon, {"experts": expert_ids(MIB)})
        assert (wire_bytes(staged) < staged.payload_bytes) == is_encoded

    with_client(daemon, ask, codec=given_codec)
