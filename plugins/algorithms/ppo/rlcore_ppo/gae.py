"""Generalised advantage estimation: Schulman et al. 2016, arXiv:1506.02438, eq. 11, 12 and 16.

Axes: ``N`` samples, ``T`` tokens. Time is counted in live tokens (``loss_mask`` not 0): what a tool or user said in
between is no action and no state of its own, so ``next`` is the next token that the policy wrote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rlcore.data.groups import finite
from rlcore.data.returns import discounted_sums, rewards_of_tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rlcore.data.batch import Batch


def generalised_advantages(batch: Batch, *, gamma: float, lam: float, bootstrap_truncated: bool) -> NDArray[np.float64]:
    """``A_t = Σ_l (γλ)^l δ_{t+l}`` with ``δ_t = r_t + γ V_next − V_t``; float64[T], 0 where masked.

    ``r_t`` are the ``token_rewards``, with the sample's ``reward`` added at its last live token; ``V`` are the
    ``values``. After the last live token V_next is 0; with ``bootstrap_truncated``, and where the sample is
    ``truncated``, it is the value of that token itself, the state closest to the one that follows that has a value.

    Raises ``BatchError`` naming the rows with rewards or values that are no finite numbers.
    """
    live = batch["loss_mask"] != 0
    values = np.where(live, batch["values"], 0).astype(np.float64)
    finite(batch.sum_rows(values), "sums of values")
    flat, rows = values[live], batch.rows[live]
    following = np.append(flat[1:], 0.0)[: len(flat)]
    last = np.append(rows[1:] != rows[:-1], True)[: len(flat)]
    goes_on = batch["truncated"][rows] & bootstrap_truncated
    following[last] = np.where(goes_on, flat, 0.0)[last]
    errors = rewards_of_tokens(batch) - values
    errors[live] += gamma * following
    return discounted_sums(batch, errors, gamma * lam)
