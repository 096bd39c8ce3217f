"""Metrics of what was sampled in a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from rlcore.data.sample import Group


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards, lengths and spread of the sampled groups."""
    samples = [sample for group in groups for sample in group.samples]
    rewards = np.array([sample.reward for sample in samples])
    tokens = np.array([sample.response_tokens for sample in samples])
    prompts = np.array([len(group.prompt.tokens) for group in groups])
    flat = [not has_spread([sample.reward for sample in group.samples]) for group in groups]
    metrics = {
        "reward/mean": rewards.mean(),
        "reward/std": rewards.std(),
        "reward/min": rewards.min(),
        "reward/max": rewards.max(),
        "response/tokens_mean": tokens.mean(),
        "response/tokens_max": tokens.max(),
        "response/tokens_total": tokens.sum(),
        "response/truncated_fraction": np.mean([sample.truncated for sample in samples]),
        "prompt/tokens_mean": prompts.mean(),
        "group/zero_spread_fraction": np.mean(flat),
    }
    named: dict[str, list[float]] = defaultdict(list)
    for sample in samples:
        for name, value in sample.rewards.items():
            named[f"reward/{name}/mean"].append(value)
        for name, value in sample.metrics.items():
            named[f"reward/{name}"].append(value)
    metrics |= {name: np.mean(values) for name, values in named.items()}
    return {name: float(value) for name, value in metrics.items()}


def has_spread(rewards: Sequence[float]) -> bool:
    """Whether the rewards of a group differ by more than float32 noise; from equal ones nothing can be learnt."""
    return bool(np.ptp(rewards) > 1e-6 * max(1.0, float(np.abs(rewards).max())))


def mean_metrics(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean of each metric over the updates that have it: one without a live token has no metrics of the loss."""
    values: dict[str, list[float]] = defaultdict(list)
    for metrics in updates:
        for name, value in metrics.items():
            values[name].append(value)
    return {name: float(np.mean(of_updates)) for name, of_updates in values.items()}
