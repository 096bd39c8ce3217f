"""The policy loss ``cispo``: REINFORCE with clipped importance weights that carry no gradient, so no token is lost.

MiniMax 2025, "MiniMax-M1", arXiv:2506.13585 §3.1.
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
    """CISPO: clip the importance weight, not the update."""

    clip_low: Annotated[float, Field(ge=0, le=1)] | None = None
    """The weight is at least 1 − clip_low; null has no lower bound, as in the paper."""
    clip_high: Annotated[float, Field(ge=0)] = 4.0
    """The weight is at most 1 + clip_high."""


def cispo(inputs: LossInputs, *, clip_low: float | None, clip_high: float) -> LossOutput:
    """The loss of each token, float32[L]; with ρ = π / π_old and sg what carries no gradient::

        ℓ = −sg[clip(ρ, 1 − clip_low, 1 + clip_high)] A log π

    Only its gradient means something: that of the policy, weighted; a token whose weight is clipped keeps it. Metrics:
    ``ratio``, ρ; ``clip_fraction``, tokens whose weight is clipped.
    """
    from rlcore.torch.losses import LossOutput

    ratio = inputs.log_ratio.detach().exp()
    weight = ratio.clamp(None if clip_low is None else 1 - clip_low, 1 + clip_high)
    return LossOutput(
        -weight * inputs.advantages * inputs.logprobs,
        {"ratio": ratio, "clip_fraction": (weight != ratio).to(ratio.dtype)},
    )


@hookimpl
def rlcore_policy_loss(config: Config) -> PolicyLoss:
    """CISPO with these bounds."""
    return partial(cispo, clip_low=config.clip_low, clip_high=config.clip_high)
