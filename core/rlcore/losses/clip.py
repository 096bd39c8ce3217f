"""The policy loss ``clip``: PPO's clipped surrogate. The formula is in ``rlcore.torch.losses``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from rlcore import PluginConfig, hookimpl

if TYPE_CHECKING:
    from rlcore.plugins.interfaces import PolicyLoss


class Config(PluginConfig):
    """PPO's clipped surrogate, with a range for each side and dual clip."""

    clip_low: Annotated[float, Field(ge=0, le=1)] = 0.2
    """How far below 1 the ratio of new to old probability may fall before its gradient is cut."""
    clip_high: Annotated[float, Field(ge=0)] = 0.2
    """How far above 1 the ratio may rise before its gradient is cut; DAPO sets 0.28."""
    dual_clip: Annotated[float, Field(gt=1)] | None = 3.0
    """Largest ratio that a negative advantage is multiplied by; null has no bound, as in the PPO paper."""


@hookimpl
def rlcore_policy_loss(config: Config) -> PolicyLoss:
    """The clipped surrogate with these options."""
    from rlcore.torch.losses import clipped_surrogate

    return partial(clipped_surrogate, clip_low=config.clip_low, clip_high=config.clip_high, dual_clip=config.dual_clip)
