"""``opo``: the baseline of least variance, under a gradient that grows with the length of the response.

Axes: ``N`` samples. On-policy RL with optimal reward baseline: Hao et al. 2025, arXiv:2505.23585. The baseline of least
variance weighs each reward with the squared norm of its gradient, which the paper takes as proportional to length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from rlcore import AlgorithmConfig, hookimpl
from rlcore.data.groups import deviations, group_sums, total_rewards, with_advantages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from rlcore import AdvantageEstimator, Batch


class Config(AlgorithmConfig):
    """On-policy RL with the optimal baseline: a sample's reward less its prompt's mean, weighted by length."""

    def needs(self) -> frozenset[str]:
        """More than one sample of each prompt."""
        return frozenset({"groups"})

    def defaults(self) -> Mapping[str, Any]:
        """The sum over a response's tokens, for which the baseline is derived."""
        return {"loss": "clip", "aggregate": "seq-mean-token-sum"}


def opo_advantages(
    rewards: NDArray[np.floating], lengths: NDArray[np.floating], groups: NDArray[np.integer]
) -> NDArray[np.float64]:
    """``a_i = r_i − Σ_j ℓ_j r_j / Σ_j ℓ_j`` over the group, ``lengths`` [N] being the live tokens; float64[N].

    A group without spread, or of one sample, gets exactly 0.
    """
    # Of the deviations from the mean, which are exactly 0 where there is no spread; the mean cancels.
    centred, _ = deviations(rewards, groups)
    baseline: NDArray[np.float64] = group_sums(lengths * centred, groups) / np.maximum(group_sums(lengths, groups), 1)
    return centred - baseline


@hookimpl
def rlcore_advantage_estimator(config: Config) -> AdvantageEstimator:
    """Every live token of a sample gets the sample's advantage."""

    def estimate(batch: Batch) -> Batch:
        lengths = batch.sum_rows(batch["loss_mask"] != 0)
        advantages = opo_advantages(total_rewards(batch), lengths, batch["group"])
        return with_advantages(batch, batch.spread(advantages))

    return estimate
