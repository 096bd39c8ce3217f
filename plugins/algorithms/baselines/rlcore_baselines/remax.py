"""``remax``: the reward of one greedy sample of the prompt as the baseline.

Axes: ``N`` samples, ``T`` tokens. ReMax: Li et al. 2023, arXiv:2310.10505.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlcore import AlgorithmConfig, hookimpl
from rlcore.data.groups import finite, with_advantages
from rlcore.data.returns import discounted_sums, rewards_of_tokens

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlcore import AdvantageEstimator, Batch


class Config(AlgorithmConfig):
    """ReMax: a sample's reward less that of the greedy answer to its prompt."""

    def needs(self) -> frozenset[str]:
        """One more, greedy sample of each prompt; one that trains is enough."""
        return frozenset({"batch:baseline_reward"})

    def defaults(self) -> Mapping[str, Any]:
        """The log-prob of a response is the sum over its tokens, as in the paper."""
        return {"loss": "clip", "aggregate": "seq-mean-token-sum"}


@hookimpl
def rlcore_advantage_estimator(config: Config) -> AdvantageEstimator:
    """``A_t = Σ_{s≥t} r_s − b_i``, with b_i the row's ``baseline_reward``.

    r is ``token_rewards`` plus, at the last live token, the sample's reward.
    """

    def estimate(batch: Batch) -> Batch:
        returns = discounted_sums(batch, rewards_of_tokens(batch), 1.0)
        baseline = finite(batch["baseline_reward"], "rewards of greedy samples")
        return with_advantages(batch, returns - batch.spread(baseline))

    return estimate
