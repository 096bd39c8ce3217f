"""``gpg``: rewards above the group's mean, scaled up by how many samples teach nothing.

Axes: ``N`` samples. Group policy gradient: Chu et al. 2025, arXiv:2504.02546, with F_norm = 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from rlcore import AlgorithmConfig, hookimpl
from rlcore.data.groups import deviations, total_rewards, with_advantages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from rlcore import AdvantageEstimator, Batch


class Config(AlgorithmConfig):
    """Group policy gradient: a sample's reward less its prompt's mean, corrected for groups without spread."""

    def needs(self) -> frozenset[str]:
        """More than one sample of each prompt."""
        return frozenset({"groups"})

    def defaults(self) -> Mapping[str, Any]:
        """The plain policy gradient and the average over all tokens, as in the paper."""
        return {"loss": "reinforce", "aggregate": "token-mean"}


def gpg_advantages(rewards: NDArray[np.floating], groups: NDArray[np.integer]) -> NDArray[np.float64]:
    """``a_i = α (r_i − μ_g)``, with ``α = N / (N − M)`` for M samples in groups without spread; float64[N].

    α makes up for what those M dilute in an average over all N. They get exactly 0.
    """
    centred, std = deviations(rewards, groups)
    return centred * (len(std) / max(1, int(np.count_nonzero(std))))


@hookimpl
def rlcore_advantage_estimator(config: Config) -> AdvantageEstimator:
    """Every live token of a sample gets the sample's advantage."""

    def estimate(batch: Batch) -> Batch:
        advantages = gpg_advantages(total_rewards(batch), batch["group"])
        return with_advantages(batch, batch.spread(advantages))

    return estimate
