"""The advantage of a sample over the others of its prompt.

Axes: ``N`` samples. Group relative policy optimization: Shao et al. 2024, arXiv:2402.03300 §4.1.2 (DeepSeekMath).
Without division by the spread: Liu et al. 2025, arXiv:2503.20783 (Dr. GRPO). Divided by the spread of the whole batch:
Liu et al. 2025, arXiv:2508.08221. Pass@k: Tang et al. 2025, arXiv:2503.19595, the leave-one-out form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from rlcore.data.groups import FLAT, deviations

if TYPE_CHECKING:
    from numpy.typing import NDArray

EPSILON = 1e-6
"""Added to the standard deviation, as in the implementations that published results come from."""


def group_advantages(
    rewards: NDArray[np.floating],
    groups: NDArray[np.integer],
    *,
    normalize: Literal["group", "batch", "none"] = "group",
    variant: Literal["mean", "pass-at-k"] = "mean",
) -> NDArray[np.float64]:
    """``a_i = (r_i − μ_g) / (σ + 1e-6)``; float64[N].

    ``rewards`` [N]; ``groups`` int[N] says which samples share a prompt: any order, any sizes. μ_g is the mean of group
    g; ``normalize`` says whose standard deviation σ is (with Bessel's correction, n − 1): the group's, that of all
    rewards of the batch, or "none" for a divisor of 1. ``variant="pass-at-k"``: the best of a group gets
    ``(r_1st − r_2nd) / (σ + 1e-6)`` and the others 0.

    A group without spread, or of one sample, gets exactly 0.
    """
    rewards = rewards.astype(np.float64)
    centred, group_std = deviations(rewards, groups)
    numerator = centred if variant == "mean" else _lead(centred, groups)
    if normalize == "none":
        return numerator
    if normalize == "group":
        return numerator / (group_std + EPSILON)
    std = rewards.std(ddof=1) if len(rewards) > 1 else 0.0
    spread = std > FLAT * np.sqrt(np.mean(rewards**2)) if len(rewards) else False
    return numerator / (std + EPSILON) if spread else np.zeros(len(rewards))


def _lead(values: NDArray[np.float64], groups: NDArray[np.integer]) -> NDArray[np.float64]:
    """How far the best of each group is ahead of the second, at its row; 0 elsewhere; float64[N]."""
    lead = np.zeros(len(values))
    order = np.lexsort((values, groups))
    values, groups = values[order], groups[order]
    best = np.append(groups[1:] != groups[:-1], True)[: len(values)]
    has_second = np.append(False, groups[1:] == groups[:-1])[: len(values)]
    at = np.flatnonzero(best & has_second)
    lead[order[at]] = values[at] - values[at - 1]
    return lead
