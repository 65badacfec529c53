"""The router picks the true best experts, and its answers do not depend on what was asked before."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from forebay.demo.router import Router, top_experts
from forebay.demo.settings import EXPERTS, EXPERTS_PER_TOKEN, LAYERS

TEXT = b"def route(token):\n    return sorted(scores, reverse=True)[:10]\n"


def as_ids(text: bytes) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    ids = np.frombuffer(text, np.uint8).astype(np.int32)[None]
    return ids, np.concatenate([np.zeros((1, 1), np.int32), ids[:, :-1]], axis=1)


def slowly_routed(router: Router, previous: int, token: int, layer: int) -> list[int]:
    """Scores each expert with Python integers and sorts them all."""
    hidden = [int(value) for value in router.embeddings[previous * 256 + token]]
    matrix = router.matrices[layer].astype(int).tolist()
    scores = [sum(h * row[expert] for h, row in zip(hidden, matrix, strict=True)) for expert in range(EXPERTS)]
    return sorted(range(EXPERTS), key=lambda expert: (-scores[expert], expert))[:EXPERTS_PER_TOKEN]


def test_router_picks_what_a_direct_computation_picks() -> None:
    router = Router(seed=3)
    ids, previous = as_ids(TEXT)
    routed = router.routed_experts(ids, previous, np.ones(ids.shape, bool))
    for position in (0, 1, 17, len(TEXT) - 1):
        for layer in (0, 1, LAYERS - 1):
            expected = slowly_routed(router, int(previous[0, position]), int(ids[0, position]), layer)
            assert routed[0, position, layer].tolist() == expected


def test_layers_route_differently() -> None:
    router = Router(seed=0)
    ids, previous = as_ids(TEXT)
    routed = router.routed_experts(ids, previous, np.ones(ids.shape, bool))
    assert (routed[:, :, 0] != routed[:, :, 1]).any()


def test_tokens_that_were_not_routed_have_no_expert() -> None:
    ids, previous = as_ids(TEXT)
    where = np.arange(len(TEXT))[None] % 3 == 0
    routed = Router(seed=0).routed_experts(ids, previous, where)
    assert (routed[~where] == -1).all()
    assert (routed[where] >= 0).all()


def test_what_was_asked_before_does_not_change_an_answer() -> None:
    ids, previous = as_ids(TEXT)
    everywhere = np.ones(ids.shape, bool)
    fresh, used = Router(seed=0), Router(seed=0)
    used.routed_experts(*as_ids(bytes(range(256))), np.ones((1, 256), bool))
    used.routed_experts(ids[:, ::-1].copy(), previous, everywhere)
    expected = fresh.routed_experts(ids, previous, everywhere)
    assert (used.routed_experts(ids, previous, everywhere) == expected).all()


def test_sums_stay_exact_in_float32() -> None:
    router = Router(seed=0)
    largest = 127 * 127 * router.embeddings.shape[1]
    assert largest < 1 << 24
    assert largest * EXPERTS < 1 << 31
    assert (router.embeddings == np.rint(router.embeddings)).all()


@given(st.lists(st.integers(-3, 3), min_size=4, max_size=12), st.integers(1, 3))
def test_of_equal_scores_the_lower_id_wins(scores: list[int], count: int) -> None:
    expected = sorted(range(len(scores)), key=lambda expert: (-scores[expert], expert))[:count]
    assert top_experts(np.array([scores], np.float32), count).tolist() == [expected]
