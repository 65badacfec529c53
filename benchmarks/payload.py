"""Micro-batches of the real shape, scaled down: one leaf has 98 % of the bytes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from forebay.wire import MIB, Limits, default_registry, describe, flatten

_LAYERS: Final = 60
_EXPERTS_PER_TOKEN: Final = 10
_PLAIN_LEAVES: Final = ("completion_ids", "segment_ids", "segment_positions")
_FLOAT_LEAVES: Final = ("completion_mask", "advantages", "old_per_token_logps", "ref_per_token_logps", "returns")
_TOKEN_BYTES: Final = 2 * _LAYERS * _EXPERTS_PER_TOKEN + 4 * (len(_PLAIN_LEAVES) + len(_FLOAT_LEAVES))


def micro_batch(payload_mib: float, seed: int = 0) -> dict[str, Any]:
    """Makes a micro-batch with as many tokens as fit into a size.

    Args:
        payload_mib: MiB of all leaves together.
        seed: Of its values.

    Returns:
        `routed_experts` int16 [T, L, K] and eight leaves of [T], with static values beside them.
    """
    rng = np.random.default_rng(seed)
    tokens = max(1, int(payload_mib * MIB) // _TOKEN_BYTES)
    example: dict[str, Any] = {
        "routed_experts": rng.integers(0, 512, (tokens, _LAYERS, _EXPERTS_PER_TOKEN), np.int16),
        "num_segments": tokens // 64,
    }
    example |= {name: rng.integers(0, 32_000, tokens, np.int32) for name in _PLAIN_LEAVES}
    example |= {name: rng.random(tokens, np.float32) for name in _FLOAT_LEAVES}
    return {"train_example": example, "pad_id": 0, "eos_id": 1}


def largest_leaf(tree: Any) -> Any:
    """Returns the leaf that has nearly all of the bytes, on the host or on the device."""
    return tree["train_example"]["routed_experts"]


def payload_bytes(tree: Any) -> int:
    """Returns the bytes of a micro-batch on the wire, the gaps between its leaves included."""
    limits = Limits()
    layout = describe(flatten(tree, registry=default_registry, limits=limits), limits).layout(limits.chunk_bytes)
    return sum(span.length for span in layout.spans)
