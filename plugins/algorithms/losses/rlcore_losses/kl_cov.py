"""The policy loss ``kl-cov``: the unclipped surrogate, with a KL penalty on the tokens of highest covariance.

Cui et al. 2025, arXiv:2505.22617 §4. Which tokens these are is decided in ``rlcore_losses.covariance``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from rlcore import PluginConfig, hookimpl

if TYPE_CHECKING:
    from rlcore.data.batch import Batch
    from rlcore.plugins.interfaces import PolicyLoss
    from rlcore.torch.losses import LossInputs, LossOutput


class Config(PluginConfig):
    """KL-Cov: the tokens that would lower entropy most are held to the policy before the step."""

    fraction: Annotated[float, Field(gt=0, le=1)] = 2e-4
    """Share of an update's live tokens to hold back, at least one; the paper has 2e-3 for 7B and 2e-4 for 32B."""
    coef: Annotated[float, Field(ge=0)] = 1.0
    """What the KL of these tokens is multiplied by."""

    def needs(self) -> frozenset[str]:
        """Log-probs to take the covariance of; and the choice, which it makes itself."""
        return frozenset({"batch:old_logprobs", "batch:cov_selected"})

    def provides(self) -> frozenset[str]:
        """The choice of tokens."""
        return frozenset({"batch:cov_selected"})


@dataclass(frozen=True)
class KlCov:
    """``ℓ = −A ρ``, and ``ℓ = −A ρ + coef |log π − log π_old|`` at chosen tokens; ρ = π / π_old.

    Metrics: ``ratio``, ρ; ``selected_fraction``, tokens with the penalty.
    """

    config: Config

    def prepare(self, batch: Batch) -> Batch:
        """The whole update with ``cov_selected`` added: 1 at tokens with the penalty."""
        from rlcore_losses.covariance import SELECTED, highest

        chosen = highest(batch, fraction=self.config.fraction)
        return batch.with_tokens(**{SELECTED: chosen.astype("float32")})

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """The loss of each token, float32[L]."""
        from rlcore.torch.losses import LossOutput

        from rlcore_losses.covariance import SELECTED

        selected, ratio = inputs.extras[SELECTED], inputs.log_ratio.exp()
        penalty = self.config.coef * (inputs.logprobs - inputs.old_logprobs).abs()
        loss = -inputs.advantages * ratio + selected * penalty
        return LossOutput(loss, {"ratio": ratio.detach(), "selected_fraction": selected})


@hookimpl
def rlcore_policy_loss(config: Config) -> PolicyLoss:
    """KL-Cov with this penalty."""
    return KlCov(config)
