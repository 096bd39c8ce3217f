"""The policy loss ``gspo``: PPO's clipped surrogate with one ratio for a whole sequence.

Zheng et al. 2025, "Group Sequence Policy Optimization", arXiv:2507.18071, in the form that has a loss for each token
(GSPO-token in the paper): for one advantage per sequence its value and its gradient are GSPO's.
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
    """GSPO: the clipped surrogate with the geometric mean of a sequence's ratios in place of each token's."""

    clip_low: Annotated[float, Field(ge=0, le=1)] = 3e-4
    """How far below 1 the ratio of a sequence may fall before its gradient is cut; far smaller than for tokens."""
    clip_high: Annotated[float, Field(ge=0)] = 4e-4
    """How far above 1 the ratio of a sequence may rise before its gradient is cut."""


def gspo(inputs: LossInputs, *, clip_low: float, clip_high: float) -> LossOutput:
    """The loss of each token, float32[L].

    With d_u = log π − log π_old at the n live tokens u of the sequence, and sg what carries no gradient::

        s   = exp(1/n Σ_u d_u)
        s_t = sg[s] · π_t / sg[π_t]
        ℓ_t = max(−A s_t, −A clip(s_t, 1 − clip_low, 1 + clip_high))

    log s is held within ±20, where the gradient ends. Metrics: ``ratio``, s; ``clip_fraction``, tokens of sequences
    where the clipped term is the larger.
    """
    from rlcore.torch.kl import MAX_LOG_RATIO
    from rlcore.torch.losses import LossOutput

    log_ratio = inputs.logprobs - inputs.old_logprobs
    own = inputs.logprobs - inputs.logprobs.detach()
    ratio = (inputs.seq_mean(log_ratio.detach()) + own).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    plain = -inputs.advantages * ratio
    clipped = -inputs.advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    return LossOutput(
        plain.maximum(clipped),
        {"ratio": ratio.detach(), "clip_fraction": (clipped > plain).to(ratio.dtype)},
    )


@hookimpl
def rlcore_policy_loss(config: Config) -> PolicyLoss:
    """GSPO with these ranges."""
    return partial(gspo, clip_low=config.clip_low, clip_high=config.clip_high)
