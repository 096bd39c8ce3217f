"""The policy loss ``gmpo``: the geometric mean of a sequence's clipped ratios.

Zhao et al. 2025, "Geometric-Mean Policy Optimization", arXiv:2507.20673, in a form that has a loss for each token: for
one advantage per sequence its value and its gradient are the paper's.
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
    """GMPO: tokens are clipped on their own, and a sequence has the geometric mean of what is left."""

    clip_low: Annotated[float, Field(ge=0)] = 0.4
    """A negative advantage sees no log-ratio of a token below −clip_low: a ratio of e^−0.4 = 0.67."""
    clip_high: Annotated[float, Field(ge=0)] = 0.4
    """A positive advantage sees no log-ratio of a token above clip_high: a ratio of e^0.4 = 1.49."""


def gmpo(inputs: LossInputs, *, clip_low: float, clip_high: float) -> LossOutput:
    """The loss of each token, float32[L].

    With d_u = log π − log π_old at the n live tokens u of the sequence, and sg what carries no gradient::

        c_u = min(d_u, clip_high)  where A > 0
        c_u = max(d_u, −clip_low)  where A < 0
        g   = exp(1/n Σ_u c_u)
        ℓ_t = −A sg[g] · exp(c_t − sg[c_t])

    which for A ≠ 0 is −sign(A) (Π_u |min(ρ_u A, clip(ρ_u, e^−clip_low, e^clip_high) A)|)^(1/n). A clipped token has no
    gradient of its own; the others keep theirs. log g is held within ±20, where the gradient ends. Metrics: ``ratio``,
    g; ``clip_fraction``, tokens that are clipped.
    """
    import torch
    from rlcore.torch.kl import MAX_LOG_RATIO
    from rlcore.torch.losses import LossOutput

    advantages = inputs.advantages
    log_ratio = inputs.logprobs - inputs.old_logprobs
    clipped = torch.where(advantages > 0, log_ratio.clamp(max=clip_high), log_ratio.clamp(min=-clip_low))
    log_mean = inputs.seq_mean(clipped.detach()) + (clipped - clipped.detach())
    ratio = log_mean.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    is_clipped = (clipped != log_ratio) & (advantages != 0)
    return LossOutput(-advantages * ratio, {"ratio": ratio.detach(), "clip_fraction": is_clipped.to(ratio.dtype)})


@hookimpl
def rlcore_policy_loss(config: Config) -> PolicyLoss:
    """GMPO with these ranges of the log-ratio."""
    return partial(gmpo, clip_low=config.clip_low, clip_high=config.clip_high)
