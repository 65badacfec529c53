"""The micro-batch of the demonstration: sequence-packed rows for a policy-gradient step."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, TypeVar

from forebay.wire import register_type

A = TypeVar("A")
"""The arrays: numpy's on the sending side, jax's once they are on the device."""


@register_type
@dataclasses.dataclass(frozen=True, slots=True)
class TrainExample(Generic[A]):
    """Rows B of T tokens, each row a pack of segments; a segment is one trajectory.

    Attributes:
        prompt_ids: int32 [B, 0]; prompts are part of the packed rows.
        prompt_mask: float32 [B, 0].
        completion_ids: int32 [B, T], byte tokens; 0 at padding.
        completion_mask: float32 [B, T], 1 where a token is trained.
        segment_ids: int32 [B, T], from 1 up in each row; 0 is padding.
        segment_positions: int32 [B, T], position in the segment; 0 at padding.
        advantages: float32 [B, T], one value a trajectory.
        old_per_token_logps: float32 [B, T], natural log, by the policy that wrote the rollout.
        ref_per_token_logps: float32 [B, T], by the reference policy.
        sampler_is_weights: float32 [B, T], sampler-to-trainer importance weights.
        returns: float32 [B, T].
        old_values: float32 [B, T], or None where no critic ran.
        routed_experts: int16 [B, T, L, K]; -1 at padding and at each trajectory's last token.
        num_segments: Segments in all rows together.
        metadata: Trajectory ids as a tuple of str, row by row; policy version.
        sampler_agreement_applied: Whether `sampler_is_weights` are already clipped.
    """

    prompt_ids: A
    prompt_mask: A
    completion_ids: A
    completion_mask: A
    segment_ids: A
    segment_positions: A
    advantages: A
    old_per_token_logps: A | None
    ref_per_token_logps: A | None
    sampler_is_weights: A | None
    returns: A | None
    old_values: A | None
    routed_experts: A | None
    num_segments: int
    metadata: dict[str, Any]
    sampler_agreement_applied: bool
