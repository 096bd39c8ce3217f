"""``reinforce-plus-plus-baseline``: rewards above the group's mean, whitened over the batch.

Axes: ``N`` samples, ``T`` tokens. REINFORCE++-baseline: Hu et al. 2025, arXiv:2501.03262.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlcore import AlgorithmConfig, hookimpl
from rlcore.data.groups import deviations, total_rewards, with_advantages
from rlcore.data.returns import whiten

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlcore import AdvantageEstimator, Batch


class Config(AlgorithmConfig):
    """REINFORCE++ with a baseline: a sample's reward less its prompt's mean, whitened over all tokens of the step."""

    def needs(self) -> frozenset[str]:
        """More than one sample of each prompt."""
        return frozenset({"groups"})

    def defaults(self) -> Mapping[str, Any]:
        """The clipped surrogate, averaged over all tokens."""
        return {"loss": "clip", "aggregate": "token-mean"}


@hookimpl
def rlcore_advantage_estimator(config: Config) -> AdvantageEstimator:
    """``A = whiten(a)`` over all live tokens, each with its sample's ``a_i = r_i − μ_g``."""

    def estimate(batch: Batch) -> Batch:
        centred, _ = deviations(total_rewards(batch), batch["group"])
        return with_advantages(batch, whiten(batch, batch.spread(centred)))

    return estimate
