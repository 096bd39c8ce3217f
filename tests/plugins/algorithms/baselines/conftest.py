from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rlcore import AlgorithmContext, Batch
from rlcore.plugins.config import PluginRef
from rlcore.plugins.loading import build

Estimate = Callable[..., NDArray[np.float32]]


@pytest.fixture(scope="session")
def batch_of() -> Callable[..., Batch]:
    """A batch with these rewards, groups and masks (one live token each, if there are none)."""

    def make(
        rewards: Sequence[float],
        groups: Sequence[int],
        masks: Sequence[Sequence[int]] | None = None,
        samples: Mapping[str, Any] | None = None,
        **token_columns: Any,
    ) -> Batch:
        masks = [[1]] * len(rewards) if masks is None else masks
        batch = Batch.from_sequences([range(len(mask)) for mask in masks])
        flat = np.array([live for mask in masks for live in mask], np.float32)
        tokens = {name: np.array(column, np.float32) for name, column in token_columns.items()}
        batch = batch.with_tokens(loss_mask=flat, **tokens)
        columns = {name: np.array(column, np.float32) for name, column in (samples or {}).items()}
        return batch.with_samples(reward=np.array(rewards, np.float32), group=np.array(groups, np.int64), **columns)

    return make


@pytest.fixture(scope="session")
def advantages() -> Estimate:
    """The advantages float32[T] that the estimator of this name gives a batch."""
    built: dict[str, Any] = {}

    def estimate(
        name: str, batch: Batch, weights: Mapping[str, float] | None = None, **options: Any
    ) -> NDArray[np.float32]:
        key = repr((name, options, weights))
        if key not in built:  # looking a plugin up reads the metadata of every distribution
            context = AlgorithmContext(
                samples_per_prompt=4, max_response_tokens=8, seed=0, reward_weights=weights or {}
            )
            built[key] = build(PluginRef("algorithm", name, options), context)
        column: NDArray[np.float32] = built[key](batch)["advantages"]
        return column

    return estimate
