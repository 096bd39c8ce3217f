"""``reinforce-plus-plus``: returns of each token, whitened over the batch; no groups, no critic.

Axes: ``T`` tokens. REINFORCE++: Hu et al. 2025, arXiv:2501.03262. The KL penalty at each token, which the paper has, is
``algorithm.kl`` with ``in: reward``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field
from rlcore import AlgorithmConfig, hookimpl
from rlcore.data.groups import with_advantages
from rlcore.data.returns import discounted_sums, rewards_of_tokens, whiten

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlcore import AdvantageEstimator, Batch


class Config(AlgorithmConfig):
    """REINFORCE++: discounted returns of each token, whitened over all tokens of the step."""

    gamma: float = Field(default=1.0, ge=0, le=1)
    """What a reward is worth one generated token earlier; tokens of tools and users take no time."""

    def defaults(self) -> Mapping[str, Any]:
        """The clipped surrogate, averaged over all tokens."""
        return {"loss": "clip", "aggregate": "token-mean"}


@hookimpl
def rlcore_advantage_estimator(config: Config) -> AdvantageEstimator:
    """``A = whiten(G)`` over all live tokens, with ``G_t = r_t + γ G_next``.

    r is ``token_rewards`` plus, at the last live token, the sample's reward.
    """

    def estimate(batch: Batch) -> Batch:
        returns = discounted_sums(batch, rewards_of_tokens(batch), config.gamma)
        return with_advantages(batch, whiten(batch, returns))

    return estimate
