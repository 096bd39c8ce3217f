"""The policy loss ``sft``: imitate the given tokens. For warm starts; no reward enters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlcore import PluginConfig, hookimpl

if TYPE_CHECKING:
    from rlcore.plugins.interfaces import PolicyLoss


class Config(PluginConfig):
    """Supervised fine-tuning: minus the log-prob of each token, whatever its advantage."""


@hookimpl
def rlcore_policy_loss(config: Config) -> PolicyLoss:
    """Minus the log-prob of each token; the batch needs no advantages."""
    from rlcore.torch.losses import NegativeLogLikelihood

    return NegativeLogLikelihood()
