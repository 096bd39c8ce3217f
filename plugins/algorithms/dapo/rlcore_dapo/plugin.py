"""The advantage estimator ``dapo``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from rlcore import AlgorithmConfig, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlcore import AdvantageEstimator, AlgorithmContext, Batch


class Config(AlgorithmConfig):
    """DAPO: group advantages, clip-higher, a mean over tokens, dynamic sampling, and shaping of long responses."""

    overlong_buffer_tokens: int | None = None
    """Last tokens before data.max_response_tokens in which a penalty rises; null has no penalty."""
    overlong_penalty: Annotated[float, Field(ge=0)] = 1.0
    """Penalty at data.max_response_tokens, taken off the reward; 0 has none."""
    mask_truncated: bool = False
    """Leave responses that the token limit cut off out of the loss; they still count in their group's mean."""

    @property
    def penalizes(self) -> bool:
        """Whether long responses are penalised."""
        return self.overlong_buffer_tokens is not None and self.overlong_penalty > 0

    def needs(self) -> frozenset[str]:
        """More than one sample of each prompt."""
        return frozenset({"groups"})

    def defaults(self) -> Mapping[str, Any]:
        """The paper's loss, average and sampling, with the dual clip of its published recipe."""
        return {
            "loss": {"use": "clip", "clip_low": 0.2, "clip_high": 0.28, "dual_clip": 10.0},
            "aggregate": "token-mean",
            "dynamic_sampling": {"max_generation_rounds": 10},
        }

    def conflicts(self, context: AlgorithmContext) -> Mapping[str, str]:
        """A buffer that is no part of the response. Nothing is said of it where there is no penalty."""
        buffer, most = self.overlong_buffer_tokens, context.max_response_tokens
        if buffer is None or not self.penalizes or 1 <= buffer <= most:
            return {}
        return {"overlong_buffer_tokens": f"must be from 1 to data.max_response_tokens ({most}), got {buffer}"}


@hookimpl
def rlcore_advantage_estimator(config: Config, context: AlgorithmContext) -> AdvantageEstimator:
    """Every live token of a sample gets the sample's advantage; with ``mask_truncated`` rows are dropped."""
    from rlcore.data.groups import total_rewards, with_advantages
    from rlcore.errors import PluginError
    from rlcore_grpo.advantages import group_advantages

    from rlcore_dapo.overlong import overlong_penalty

    for option, problem in config.conflicts(context).items():
        raise PluginError(f"option {option}: {problem}")

    def estimate(batch: Batch) -> Batch:
        rewards = total_rewards(batch)
        if config.overlong_buffer_tokens is not None and config.penalizes:
            rewards = rewards + overlong_penalty(
                batch["response_tokens"],
                max_tokens=context.max_response_tokens,
                buffer_tokens=config.overlong_buffer_tokens,
                factor=config.overlong_penalty,
            )
        batch = with_advantages(batch, batch.spread(group_advantages(rewards, batch["group"])))
        return batch.select(~batch["truncated"]) if config.mask_truncated else batch

    return estimate
