"""``gdpo``: GRPO's advantage of each reward by itself, summed with the rewards' weights and whitened.

Axes: ``N`` samples, ``T`` tokens. Group reward-decoupled normalization: Liu et al. 2026, arXiv:2601.05242.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from rlcore import AlgorithmConfig, hookimpl
from rlcore.data.groups import finite, with_advantages
from rlcore.data.returns import whiten
from rlcore.errors import BatchError, PluginError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from rlcore import AdvantageEstimator, AlgorithmContext, Batch


_KL_IN_REWARD = (
    "gdpo normalises each reward by itself, in which a KL taken off the reward would lose its coefficient; "
    "set algorithm.kl.in to loss"
)


class Config(AlgorithmConfig):
    """GRPO with each reward normalised by itself, so that a large or frequent one does not hide the others."""

    def needs(self) -> frozenset[str]:
        """More than one sample of each prompt."""
        return frozenset({"groups"})

    def defaults(self) -> Mapping[str, Any]:
        """The clipped surrogate, averaged as in GRPO."""
        return {"loss": "clip", "aggregate": "seq-mean-token-mean"}

    def conflicts(self, context: AlgorithmContext) -> Mapping[str, str]:
        """KL in the reward, which has no column of its own to be normalised in."""
        return {"kl": _KL_IN_REWARD} if context.kl_in_reward else {}


def gdpo_advantages(batch: Batch, weights: Mapping[str, float]) -> NDArray[np.float64]:
    """``a_i = Σ_k w_k (r_ik − μ_gk) / (σ_gk + 1e-6)`` over the rewards k; float64[N].

    Of each reward, a group without spread, or of one sample, adds exactly 0.
    """
    from rlcore_grpo.advantages import group_advantages

    total = np.zeros(len(batch))
    for name, weight in weights.items():
        rewards = finite(batch[f"reward/{name}"], f"rewards {name!r}")
        total += weight * group_advantages(rewards, batch["group"])
    return total


@hookimpl
def rlcore_advantage_estimator(config: Config, context: AlgorithmContext) -> AdvantageEstimator:
    """``A = whiten(a)`` over all live tokens, each with its sample's a_i.

    Raises:
        PluginError: the manifest names no reward.
        BatchError: there are rewards of tokens (KL in the reward), which have no column to be normalised in.
    """
    if not context.reward_weights:
        raise PluginError("gdpo normalises each reward by itself; the run has none, name them under rewards:")

    def estimate(batch: Batch) -> Batch:
        if "token_rewards" in batch:
            raise BatchError(_KL_IN_REWARD)
        advantages = gdpo_advantages(batch, context.reward_weights)
        return with_advantages(batch, whiten(batch, batch.spread(advantages)))

    return estimate
