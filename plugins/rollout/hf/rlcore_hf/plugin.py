"""The plugin ``hf``: options and hook. The engine, and with it torch, is imported when it is built."""

from __future__ import annotations

from pydantic import Field
from rlcore import PluginConfig, RolloutContext, RolloutEngine, hookimpl


class Config(PluginConfig):
    """Generate with the Hugging Face model itself, in this process."""

    max_rows: int = Field(default=512, gt=0)
    """Requests generated at one time; the others wait. The key-value cache grows with it."""
    prefill_tokens: int = Field(default=16384, gt=0)
    """Prompt tokens, padding included, that one forward pass reads. Changes memory and speed only."""


@hookimpl
def rlcore_rollout_engine(config: Config, context: RolloutContext) -> RolloutEngine:
    """The engine for this context."""
    from rlcore_hf.engine import HfEngine

    return HfEngine(config, context)
