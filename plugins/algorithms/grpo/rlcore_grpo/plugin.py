"""The advantage estimator ``grpo``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlcore import AlgorithmConfig, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlcore import AdvantageEstimator, Batch


class Config(AlgorithmConfig):
    """Group relative policy optimization: a sample's reward compared with the others of its prompt."""

    normalize_by_std: bool = True
    """Divide by the standard deviation of the group's rewards; false is Dr. GRPO."""

    def needs(self) -> frozenset[str]:
        """More than one sample of each prompt."""
        return frozenset({"groups"})

    def defaults(self) -> Mapping[str, Any]:
        """The clipped surrogate, averaged as in the paper: GRPO's eq. 3, or Dr. GRPO's constant length."""
        aggregate = "seq-mean-token-mean" if self.normalize_by_std else "seq-mean-token-sum-norm"
        return {"loss": "clip", "aggregate": aggregate}


@hookimpl
def rlcore_advantage_estimator(config: Config) -> AdvantageEstimator:
    """Every live token of a sample gets the sample's advantage."""
    import numpy as np

    from rlcore_grpo.advantages import group_advantages, total_rewards

    def estimate(batch: Batch) -> Batch:
        rewards = total_rewards(batch)
        advantages = group_advantages(rewards, batch["group"], normalize_by_std=config.normalize_by_std)
        per_token = batch.spread(advantages.astype(np.float32))
        return batch.with_tokens(advantages=np.where(batch["loss_mask"] != 0, per_token, np.float32(0)))

    return estimate
