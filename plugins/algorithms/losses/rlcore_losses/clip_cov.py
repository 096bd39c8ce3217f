"""The policy loss ``clip-cov``: the clipped surrogate, without the gradient of some tokens of high covariance.

Cui et al. 2025, arXiv:2505.22617 §4. Which tokens are left out is decided in ``rlcore_losses.covariance``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator
from rlcore import PluginConfig, hookimpl

if TYPE_CHECKING:
    from rlcore.data.batch import Batch
    from rlcore.plugins.interfaces import PolicyLoss
    from rlcore.torch.losses import LossInputs, LossOutput


class Config(PluginConfig):
    """Clip-Cov: a few of the tokens that would lower entropy most are left out of an update."""

    clip_low: Annotated[float, Field(ge=0, le=1)] = 1.0
    """How far below 1 a token's ratio may fall before its gradient is cut; 1 is no bound, as the authors train."""
    clip_high: Annotated[float, Field(ge=0)] = 1.0
    """How far above 1 the ratio may rise before its gradient is cut."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 2e-4
    """Share of an update's live tokens to leave out: at least one, and no more than lie between the bounds."""
    cov_low: float = 1.0
    """Tokens are drawn from those whose covariance is above this: many times the average."""
    cov_high: float = 5.0
    """Tokens are drawn from those whose covariance is below this."""

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.cov_low >= self.cov_high:
            raise ValueError(f"cov_low must be below cov_high, got {self.cov_low} and {self.cov_high}")
        return self

    def needs(self) -> frozenset[str]:
        """Log-probs to take the covariance of; and the choice, which it makes itself."""
        return frozenset({"batch:old_logprobs", "batch:cov_selected"})

    def provides(self) -> frozenset[str]:
        """The choice of tokens."""
        return frozenset({"batch:cov_selected"})


@dataclass(frozen=True)
class ClipCov:
    """``ℓ = max(−A ρ, −A clip(ρ, 1 − clip_low, 1 + clip_high))``, and 0 at chosen tokens; ρ = π / π_old.

    Metrics: those of the clipped surrogate; ``selected_fraction``, tokens that are left out.
    """

    config: Config

    def prepare(self, batch: Batch) -> Batch:
        """The whole update with ``cov_selected`` added: 1 at tokens to leave out."""
        from rlcore_losses.covariance import SELECTED, in_band

        config = self.config
        chosen = in_band(batch, fraction=config.fraction, low=config.cov_low, high=config.cov_high)
        return batch.with_tokens(**{SELECTED: chosen.astype("float32")})

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """The loss of each token, float32[L]."""
        from rlcore.torch.losses import LossOutput, clipped_surrogate

        from rlcore_losses.covariance import SELECTED

        config, selected = self.config, inputs.extras[SELECTED]
        output = clipped_surrogate(inputs, clip_low=config.clip_low, clip_high=config.clip_high, dual_clip=None)
        return LossOutput(output.loss * (1 - selected), {**output.metrics, "selected_fraction": selected})


@hookimpl
def rlcore_policy_loss(config: Config) -> PolicyLoss:
    """Clip-Cov with these bounds."""
    return ClipCov(config)
