"""The advantage estimator ``grpo``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from rlcore import AlgorithmConfig, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlcore import AdvantageEstimator, Batch


class Config(AlgorithmConfig):
    """Group relative policy optimization: a sample's reward compared with the others of its prompt."""

    normalize: Literal["group", "batch", "none"] = "group"
    """Divide by the standard deviation of the group's rewards, of all rewards of the step, or not; none is Dr. GRPO."""

    variant: Literal["mean", "pass-at-k"] = "mean"
    """Compare each sample with its group's mean, or only the best with the second best, which raises pass@k."""

    def needs(self) -> frozenset[str]:
        """More than one sample of each prompt."""
        return frozenset({"groups"})

    def defaults(self) -> Mapping[str, Any]:
        """The clipped surrogate, averaged as in the paper: GRPO's eq. 3, or Dr. GRPO's constant length."""
        aggregate = "seq-mean-token-sum-norm" if self.normalize == "none" else "seq-mean-token-mean"
        return {"loss": "clip", "aggregate": aggregate}


@hookimpl
def rlcore_advantage_estimator(config: Config) -> AdvantageEstimator:
    """Every live token of a sample gets the sample's advantage."""
    from rlcore.data.groups import total_rewards, with_advantages

    from rlcore_grpo.advantages import group_advantages

    def estimate(batch: Batch) -> Batch:
        advantages = group_advantages(
            total_rewards(batch), batch["group"], normalize=config.normalize, variant=config.variant
        )
        return with_advantages(batch, batch.spread(advantages))

    return estimate
