"""The hooks. A plugin module implements exactly one, that of its entry-point group.

Every argument is optional in an implementation: ``def rlcore_reward(config)`` is as good as taking the context too.
The annotation of ``config`` names the plugin's options, a ``PluginConfig``.
"""

from __future__ import annotations

from typing import Any

import pluggy

from rlcore.plugins.config import Kind
from rlcore.plugins.interfaces import (
    AdvantageEstimator,
    AlgorithmContext,
    PolicyLoss,
    Reward,
    RewardContext,
    RolloutContext,
    RolloutEngine,
    Tracker,
    TrackerContext,
    TrainBackend,
    TrainContext,
)

hookspec = pluggy.HookspecMarker("rlcore")

HOOKS: dict[Kind, str] = {
    "trainer": "rlcore_train_backend",
    "rollout": "rlcore_rollout_engine",
    "algorithm": "rlcore_advantage_estimator",
    "loss": "rlcore_policy_loss",
    "reward": "rlcore_reward",
    "tracker": "rlcore_tracker",
}
"""The hook of each kind of plugin."""


@hookspec
def rlcore_train_backend(config: Any, context: TrainContext) -> TrainBackend:  # type: ignore[empty-body]
    """Hold one model role on one rank, group ``rlcore.trainers``.

    Import torch inside, never at the top::

        @hookimpl
        def rlcore_train_backend(config: Config, context: TrainContext) -> TrainBackend:
            from rlcore_fsdp.backend import FsdpBackend

            return FsdpBackend(config, context)
    """


@hookspec
def rlcore_rollout_engine(config: Any, context: RolloutContext) -> RolloutEngine:  # type: ignore[empty-body]
    """Generate samples, group ``rlcore.rollout``.

    For example::

        @hookimpl
        def rlcore_rollout_engine(config: Config, context: RolloutContext) -> RolloutEngine:
            from rlcore_hf.engine import HfEngine

            return HfEngine(config, context)
    """


@hookspec
def rlcore_advantage_estimator(config: Any, context: AlgorithmContext) -> AdvantageEstimator:  # type: ignore[empty-body]
    """Turn rewards into advantages, group ``rlcore.algorithms``.

    Its config is an ``AlgorithmConfig``::

        @hookimpl
        def rlcore_advantage_estimator(config: Config):
            def centred(batch: Batch) -> Batch:
                advantage = batch["reward"] - batch["reward"].mean()
                return batch.with_tokens(advantages=batch.spread(advantage) * batch["loss_mask"])

            return centred
    """


@hookspec
def rlcore_policy_loss(config: Any) -> PolicyLoss:  # type: ignore[empty-body]
    """Turn advantages and log-probs into a loss per token, group ``rlcore.losses``.

    For example::

        @hookimpl
        def rlcore_policy_loss(config: Config):
            from rlcore.torch.losses import LossOutput

            return lambda inputs: LossOutput(-inputs.advantages * inputs.logprobs)
    """


@hookspec
def rlcore_reward(config: Any, context: RewardContext) -> Reward:  # type: ignore[empty-body]
    """Score one sample, group ``rlcore.rewards``.

    For example::

        @hookimpl
        def rlcore_reward(config: Config):
            return lambda sample: float(len(sample.response.split()) <= config.max_words)
    """


@hookspec
def rlcore_tracker(config: Any, context: TrackerContext) -> Tracker:  # type: ignore[empty-body]
    """Record metrics, group ``rlcore.trackers``.

    For example::

        @hookimpl
        def rlcore_tracker(config: Config, context: TrackerContext) -> Tracker:
            return PrintTracker()
    """
