"""The run's micro-batches, the same in every process that asks for them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from forebay.wire import Array

from .corpus import Corpus
from .micro_batch import TrainExample
from .packing import PackedRows, pack_rows
from .router import Router
from .settings import DemoSettings

_UNIFORM_LOGP = -math.log(256)  # of a byte, by a policy that has learnt nothing yet
_PROMPT_SHARE = 0.25  # of a trajectory's tokens
_MAX_IS_WEIGHT = 2.0

Floats = NDArray[np.float32]


def micro_batches(settings: DemoSettings) -> Iterator[tuple[str, TrainExample[Array]]]:
    """Yields key and micro-batch, step by step.

    All bytes follow from the settings and the corpus: two processes on one machine get the same.
    """
    corpus, router = Corpus(), Router(settings.seed)
    for step in range(settings.steps):
        for index in range(settings.micro_batches):
            rng = np.random.default_rng([settings.seed, 1, step, index])
            packed = pack_rows(corpus, settings.rows, rng)
            yield key_of(step, index), make_example(packed, router, rng, policy_version=step)


def key_of(step: int, index: int) -> str:
    """Returns the key of a step's micro-batch."""
    return f"step-{step:04d}/{index:04d}"


def make_example(
    packed: PackedRows, router: Router, rng: np.random.Generator, *, policy_version: int
) -> TrainExample[Array]:
    """Adds to packed rows what rollouts and their scoring would have added."""
    rows = len(packed.ids)
    trained, routed = _masks(packed)
    old_logps = _noisy(rng, trained, _UNIFORM_LOGP, 0.1)
    rewards = 1 + rng.standard_normal(len(packed.segments), dtype=np.float32)
    is_weights = np.minimum(np.exp(_noisy(rng, trained, 0.0, 0.05)), _MAX_IS_WEIGHT)
    return TrainExample(
        prompt_ids=np.zeros((rows, 0), np.int32),
        prompt_mask=np.zeros((rows, 0), np.float32),
        completion_ids=packed.ids,
        completion_mask=trained.astype(np.float32),
        segment_ids=packed.segment_ids,
        segment_positions=packed.segment_positions,
        advantages=_spread(packed, (rewards - rewards.mean()) / rewards.std()),
        old_per_token_logps=old_logps,
        ref_per_token_logps=old_logps + _noisy(rng, trained, 0.0, 0.05),
        sampler_is_weights=np.where(trained, is_weights, np.float32(0)),
        returns=_spread(packed, rewards),
        old_values=None,
        routed_experts=router.routed_experts(packed.ids, _previous(packed), routed),
        num_segments=len(packed.segments),
        metadata={"trajectory_ids": packed.names, "policy_version": policy_version},
        sampler_agreement_applied=True,
    )


def _masks(packed: PackedRows) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Returns where a token is trained (past the prompt) and where it was routed (not the last)."""
    trained, routed = (np.zeros(packed.ids.shape, np.bool_) for _ in range(2))
    for row, start, length in packed.segments:
        prompt = max(1, int(length * _PROMPT_SHARE))
        trained[row, start + prompt : start + length] = True
        routed[row, start : start + length - 1] = True
    return trained, routed


def _previous(packed: PackedRows) -> NDArray[np.int32]:
    previous = np.zeros_like(packed.ids)
    previous[:, 1:] = packed.ids[:, :-1]
    previous[packed.segment_positions == 0] = 0
    return previous


def _spread(packed: PackedRows, values: Floats) -> Floats:
    """Gives every token of a trajectory the trajectory's value; [B, T]."""
    spread = np.zeros(packed.ids.shape, np.float32)
    for value, (row, start, length) in zip(values, packed.segments, strict=True):
        spread[row, start : start + length] = value
    return spread


def _noisy(rng: np.random.Generator, where: NDArray[np.bool_], mean: float, deviation: float) -> Floats:
    noise = rng.standard_normal(where.shape, dtype=np.float32) * np.float32(deviation)
    return np.where(where, noise + np.float32(mean), np.float32(0))
