"""What advantage estimators share: sums over the tokens that follow, and whitening.

Axes: ``T`` tokens. Only live tokens count (``loss_mask`` not 0). What a tool or user said between them is skipped: the
next token of a generated one is the next generated one, and values under the mask may be anything, also NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlcore.data.groups import FLAT, finite, token_rewards

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlcore.data.batch import Batch

WHITEN_EPSILON = 1e-8
"""Added to the variance, as in the implementations that published results come from."""


def rewards_of_tokens(batch: Batch) -> NDArray[np.float64]:
    """``token_rewards``, and the sample's ``reward`` at its last live token; float64[T], 0 where masked.

    A row without a live token has nowhere to put its reward. Raises ``BatchError`` naming the rows in which either is
    no finite number.
    """
    column, reward = token_rewards(batch), finite(batch["reward"])
    live = np.flatnonzero(batch["loss_mask"])
    rows = batch.rows[live]
    last = np.append(rows[1:] != rows[:-1], True)[: len(live)]
    column[live[last]] += reward[rows[last]]
    return column


def discounted_sums(batch: Batch, values: NDArray[np.floating], discount: float) -> NDArray[np.float64]:
    """``S_t = x_t + discount · S_next``, next being the row's next live token; float64[T], 0 where masked.

    With rewards and γ these are returns, with one-step errors and γλ generalised advantages (Schulman et al. 2016,
    arXiv:1506.02438 eq. 16).
    """
    live = batch["loss_mask"] != 0
    lengths = batch.sum_rows(live).astype(np.int64)
    flat, sums = values[live].astype(np.float64), np.zeros(len(batch.tokens))
    # One pass from the end over all rows at once, the longest first, so that those not used up yet are a prefix.
    order = np.argsort(-lengths, kind="stable")
    last = np.cumsum(lengths)[order] - 1
    longest = int(lengths.max(initial=0))
    going_on = len(lengths) - np.searchsorted(np.sort(lengths), np.arange(longest), side="right")
    carried, out = np.zeros(len(lengths)), np.zeros(len(flat))
    for back, rows in enumerate(going_on):
        here = last[:rows] - back
        carried[:rows] = out[here] = flat[here] + discount * carried[:rows]
    sums[live] = out
    return sums


def whiten(batch: Batch, values: NDArray[np.floating]) -> NDArray[np.float64]:
    """``(x − μ) / sqrt(σ² + 1e-8)``, with mean and variance (n − 1) over all live tokens; float64[T], 0 where masked.

    Values without spread (``FLAT``), as a single one, become exactly 0.
    """
    live = batch["loss_mask"] != 0
    whitened = np.zeros(len(values))
    flat = values[live].astype(np.float64)
    if len(flat) > 1 and flat.std(ddof=1) > FLAT * np.sqrt(np.mean(flat**2)):
        whitened[live] = (flat - flat.mean()) / np.sqrt(flat.var(ddof=1) + WHITEN_EPSILON)
    return whitened
