"""``rloo``: REINFORCE with the mean of the other samples as the baseline.

Axes: ``N`` samples. Kool et al. 2019 ("Buy 4 REINFORCE samples, get a baseline for free!"); for language models
Ahmadian et al. 2024, arXiv:2402.14740 §2.1.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from rlcore import AlgorithmConfig, hookimpl
from rlcore.data.groups import deviations, group_sizes, total_rewards, with_advantages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from rlcore import AdvantageEstimator, Batch


class Config(AlgorithmConfig):
    """REINFORCE leave-one-out: a sample's reward less the mean of the others of its prompt."""

    def needs(self) -> frozenset[str]:
        """More than one sample of each prompt."""
        return frozenset({"groups"})

    def defaults(self) -> Mapping[str, Any]:
        """The log-prob of a response is the sum over its tokens, as in the paper."""
        return {"loss": "clip", "aggregate": "seq-mean-token-sum"}


def rloo_advantages(rewards: NDArray[np.floating], groups: NDArray[np.integer]) -> NDArray[np.float64]:
    """``a_i = r_i − Σ_{j≠i} r_j / (n − 1) = n / (n − 1) · (r_i − μ_g)`` for a group of n; float64[N].

    A group without spread, or of one sample, gets exactly 0.
    """
    sizes = group_sizes(groups)
    centred, _ = deviations(rewards, groups)
    advantages: NDArray[np.float64] = sizes / np.maximum(sizes - 1, 1) * centred
    return advantages


@hookimpl
def rlcore_advantage_estimator(config: Config) -> AdvantageEstimator:
    """Every live token of a sample gets the sample's advantage."""

    def estimate(batch: Batch) -> Batch:
        advantages = rloo_advantages(total_rewards(batch), batch["group"])
        return with_advantages(batch, batch.spread(advantages))

    return estimate
