"""The advantage of a sample over the others of its prompt.

Axes: ``N`` samples. Group relative policy optimization: Shao et al. 2024, arXiv:2402.03300 §4.1.2 (DeepSeekMath).
Without division by the spread: Liu et al. 2025, arXiv:2503.20783 (Dr. GRPO).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rlcore.errors import BatchError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rlcore.data.batch import Batch

EPSILON = 1e-6
"""Added to the standard deviation, as in the implementations that published results come from."""

_FLAT = 1e-6
"""A group has no spread if its standard deviation is at most this fraction of its rewards' root mean square. Rewards
are float32 sums (resolution 1e-7), whose residue must not be divided by a standard deviation of the same residue."""

_SHOWN_ROWS = 5


def group_advantages(
    rewards: NDArray[np.floating], groups: NDArray[np.integer], *, normalize_by_std: bool
) -> NDArray[np.float64]:
    """``a_i = (r_i − μ_g) / (σ_g + 1e-6)``, or ``r_i − μ_g`` without normalization; float64[N].

    ``rewards`` [N]; ``groups`` int[N] says which samples share a prompt: any order, any sizes. μ_g and σ_g are mean and
    standard deviation over group g, with Bessel's correction (n − 1). A group without spread, or of one sample, gets
    exactly 0.
    """
    _, index = np.unique(groups, return_inverse=True)
    rewards = rewards.astype(np.float64)
    sizes = np.bincount(index)
    centred = rewards - (np.bincount(index, rewards) / sizes)[index]
    std = np.sqrt(np.bincount(index, centred**2) / np.maximum(sizes - 1, 1))
    flat = std <= _FLAT * np.sqrt(np.bincount(index, rewards**2) / sizes)
    scale = std + EPSILON if normalize_by_std else np.ones_like(std)
    return np.where(flat[index], 0.0, centred / scale[index])


def total_rewards(batch: Batch) -> NDArray[np.float64]:
    """``reward`` plus the sum of ``token_rewards``, where there are any, of each sample; float64[N].

    Raises ``BatchError`` naming the rows whose total is no finite number.
    """
    rewards = batch["reward"].astype(np.float64)
    if "token_rewards" in batch:
        rewards = rewards + batch.sum_rows(batch["token_rewards"])
    bad = np.flatnonzero(~np.isfinite(rewards))
    if len(bad):
        shown = ", ".join(f"{row} ({rewards[row]})" for row in bad[:_SHOWN_ROWS])
        more = f" and {len(bad) - _SHOWN_ROWS} more" if len(bad) > _SHOWN_ROWS else ""
        raise BatchError(f"rewards must be finite numbers; rows {shown}{more} of the batch are not")
    return rewards
