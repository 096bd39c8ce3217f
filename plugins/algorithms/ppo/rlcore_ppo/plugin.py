"""The advantage estimator ``ppo``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from rlcore import AlgorithmConfig, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlcore import AdvantageEstimator, Batch

Discount = Annotated[float, Field(ge=0, le=1)]


class Config(AlgorithmConfig):
    """Proximal policy optimization: advantages over a learned critic's values, token by token."""

    gamma: Discount = 1.0
    """Discount of a reward for each token that it comes later."""
    lam: Discount = 0.95
    """λ: 0 trusts the critic alone (little variance), 1 the rewards alone (no bias)."""
    truncation: Literal["zero", "value"] = "zero"
    """What follows a response that the token limit cut off: nothing, as after any other, or the critic's value."""
    whiten: bool = True
    """Scale advantages to mean 0 and standard deviation 1 over all tokens of the step."""

    def needs(self) -> frozenset[str]:
        """A critic."""
        return frozenset({"batch:values"})

    def defaults(self) -> Mapping[str, Any]:
        """The clipped surrogate, averaged over tokens."""
        return {"loss": "clip", "aggregate": "token-mean"}


@hookimpl
def rlcore_advantage_estimator(config: Config) -> AdvantageEstimator:
    """Adds ``advantages``, and ``returns`` for the critic: advantages before whitening, plus values."""
    import numpy as np
    from rlcore.data.groups import with_advantages
    from rlcore.data.returns import whiten

    from rlcore_ppo.gae import generalised_advantages

    def estimate(batch: Batch) -> Batch:
        advantages = generalised_advantages(
            batch, gamma=config.gamma, lam=config.lam, bootstrap_truncated=config.truncation == "value"
        )
        returns = np.where(batch["loss_mask"] != 0, advantages + batch["values"], 0).astype(np.float32)
        batch = with_advantages(batch, whiten(batch, advantages) if config.whiten else advantages)
        return batch.with_tokens(returns=returns)

    return estimate
