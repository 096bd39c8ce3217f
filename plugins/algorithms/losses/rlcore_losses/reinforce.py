"""The policy loss ``reinforce``: the plain policy gradient, without a ratio.

Williams 1992, "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning". It is the
loss of Group Policy Gradient too: Chu et al. 2025, arXiv:2504.02546.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlcore import PluginConfig, hookimpl

if TYPE_CHECKING:
    from rlcore.plugins.interfaces import PolicyLoss
    from rlcore.torch.losses import LossInputs, LossOutput


class Config(PluginConfig):
    """Minus the advantage times the log-prob of each token."""


def reinforce(inputs: LossInputs) -> LossOutput:
    """The loss of each token, float32[L]: ℓ = −A log π. Only its gradient means something; π_old doesn't enter."""
    from rlcore.torch.losses import LossOutput

    return LossOutput(-inputs.advantages * inputs.logprobs)


@hookimpl
def rlcore_policy_loss(config: Config) -> PolicyLoss:
    """The plain policy gradient."""
    return reinforce
