"""How the losses of single tokens are averaged over an update: decided once, as a weight for each token.

The loss of an update is ``Σ_t w_t ℓ_t``, and gradients are summed over micro-batches and ranks, so the result doesn't
depend on how an update is split. Every term of the loss (policy, KL, entropy, value) uses the same weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rlcore.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlcore.data.batch import Batch

_Float = NDArray[np.float64]

_ROW_WEIGHTS: Mapping[str, Callable[[_Float, int], _Float | float]] = {
    "token-mean": lambda live, _: 1 / live.sum(),
    "seq-mean-token-mean": lambda live, _: 1 / (np.count_nonzero(live) * np.maximum(live, 1)),
    "seq-mean-token-sum": lambda live, _: 1 / np.count_nonzero(live),
    "seq-mean-token-sum-norm": lambda live, longest: 1 / (np.count_nonzero(live) * longest),
}
"""Weight of a live token of each row, from ``live`` float64[N], the rows' live tokens, and the longest response."""


def loss_weights(batch: Batch, aggregate: str, *, max_response_tokens: int) -> NDArray[np.float32]:
    """Weights float32[T] of the tokens of one whole update; 0 where ``loss_mask`` is 0.

    With N rows that have a live token, row i having len_i of them:

    - ``token-mean``: 1 / Σ_i len_i
    - ``seq-mean-token-mean``: 1 / (N · len_i)
    - ``seq-mean-token-sum``: 1 / N
    - ``seq-mean-token-sum-norm``: 1 / (N · max_response_tokens), the configured maximum and not the longest seen

    An update without a live token has weights of 0. Raises ``BatchError`` for an unknown ``aggregate``.
    """
    if aggregate not in _ROW_WEIGHTS:
        raise BatchError(f"unknown aggregate {aggregate!r}; there are: {', '.join(_ROW_WEIGHTS)}")
    if max_response_tokens < 1:
        raise BatchError(f"max_response_tokens must be at least 1, not {max_response_tokens}")
    mask = batch["loss_mask"] != 0
    if not mask.any():
        return np.zeros(len(mask), np.float32)
    weights = _ROW_WEIGHTS[aggregate](batch.sum_rows(mask), max_response_tokens)
    per_row = np.broadcast_to(np.asarray(weights, np.float32), len(batch))
    return np.where(mask, batch.spread(per_row), np.float32(0))
