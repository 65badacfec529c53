"""A small mixture-of-experts router: which experts each layer sends a token to.

A token's hidden state is the embedding of the byte bigram that ends in it, so each distinct bigram is routed once
and a micro-batch's routed_experts are gathered from the table.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from .settings import EXPERTS, EXPERTS_PER_TOKEN, LAYERS

_WIDTH: Final = 64
_BIGRAMS: Final = 256 * 256
_UNSET_ROW: Final = 0


class Router:
    """One router matrix a layer over the embeddings of byte bigrams, drawn from a seed.

    Embeddings and matrices hold integers of at most 127, as float32. Every sum is then exact, whatever the order
    in which BLAS adds, so any two processes choose the same experts.

    Attributes:
        embeddings: float32 [65536, width]; the row is previous byte * 256 + byte.
        matrices: float32 [L, width, experts].
    """

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 0])
        self.embeddings = _small_integers(rng, (_BIGRAMS, _WIDTH))
        self.matrices = _small_integers(rng, (LAYERS, _WIDTH, EXPERTS))
        self._row_of_bigram = np.full(_BIGRAMS, -1, np.int32)
        self._table = np.full((1, LAYERS, EXPERTS_PER_TOKEN), -1, np.int16)

    def routed_experts(
        self, ids: NDArray[np.int32], previous: NDArray[np.int32], routed: NDArray[np.bool_]
    ) -> NDArray[np.int16]:
        """Routes tokens.

        Args:
            ids: int32 [B, T], byte tokens.
            previous: int32 [B, T], the byte before each of them in its segment, 0 if none.
            routed: bool [B, T], where a token was routed at all.

        Returns:
            int16 [B, T, L, K], best expert first; -1 where `routed` is false.
        """
        bigrams = previous * 256 + ids
        self._add(np.unique(bigrams[routed]))
        rows = np.where(routed, self._row_of_bigram[bigrams], _UNSET_ROW)
        return self._table[rows]

    def _add(self, bigrams: NDArray[np.int32]) -> None:
        new = bigrams[self._row_of_bigram[bigrams] < 0]
        if new.size == 0:
            return
        self._row_of_bigram[new] = len(self._table) + np.arange(len(new))
        hidden = self.embeddings[new]
        chosen = [top_experts(hidden @ matrix, EXPERTS_PER_TOKEN) for matrix in self.matrices]
        self._table = np.concatenate([self._table, np.stack(chosen, axis=1)])


def top_experts(scores: NDArray[np.float32], count: int) -> NDArray[np.int16]:
    """Picks the experts with the highest scores.

    Args:
        scores: float32 [n, experts], whole numbers below 2**24 in size.
        count: Experts to pick.

    Returns:
        int16 [n, count], best first; of equal scores the lower id first.
    """
    experts = scores.shape[1]
    # One sortable number for score and id, so that ties have one answer.
    ranks = scores.astype(np.int32) * np.int32(experts) - np.arange(experts, dtype=np.int32)
    best = np.argpartition(-ranks, count, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(ranks, best, axis=1), axis=1)
    return np.take_along_axis(best, order, axis=1).astype(np.int16)


def _small_integers(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return rng.integers(-127, 128, size=shape, dtype=np.int8).astype(np.float32)
