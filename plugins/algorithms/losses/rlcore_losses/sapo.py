"""The policy loss ``sapo``: a soft gate on each token's ratio in place of clipping.

Gao et al. 2025, "Soft Adaptive Policy Optimization", arXiv:2511.20347.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from rlcore import PluginConfig, hookimpl

if TYPE_CHECKING:
    from rlcore.plugins.interfaces import PolicyLoss
    from rlcore.torch.losses import LossInputs, LossOutput


class Config(PluginConfig):
    """SAPO: the gradient fades as the ratio leaves 1, faster for negative advantages."""

    temperature_positive: Annotated[float, Field(gt=0)] = 1.0
    """How fast the gradient fades where the advantage is positive."""
    temperature_negative: Annotated[float, Field(gt=0)] = 1.05
    """How fast it fades where the advantage is negative; more than for positive ones keeps training stable."""


def sapo(inputs: LossInputs, *, temperature_positive: float, temperature_negative: float) -> LossOutput:
    """The loss of each token, float32[L]; with ρ = π / π_old, σ the logistic function, τ the temperature for A's sign::

        ℓ = −A · 4/τ · σ(τ (ρ − 1))

    Its gradient is −A ρ · 4 p (1 − p) ∇log π with p = σ(τ (ρ − 1)): the plain policy gradient at ρ = 1. Metrics:
    ``ratio``, ρ; ``gate``, 4 p (1 − p), the share of the gradient that is left, from 1 at ρ = 1 down to 0.
    """
    import torch
    from rlcore.torch.losses import LossOutput

    advantages, ratio = inputs.advantages, inputs.log_ratio.exp()
    tau = torch.full_like(advantages, temperature_negative).masked_fill(advantages > 0, temperature_positive)
    p = (tau * (ratio - 1)).sigmoid()
    return LossOutput(-advantages * 4 / tau * p, {"ratio": ratio.detach(), "gate": (4 * p * (1 - p)).detach()})


@hookimpl
def rlcore_policy_loss(config: Config) -> PolicyLoss:
    """SAPO with these temperatures."""
    return partial(
        sapo,
        temperature_positive=config.temperature_positive,
        temperature_negative=config.temperature_negative,
    )
