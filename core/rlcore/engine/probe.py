"""Proof that the engine samples from the trainer's weights: both score the same tokens."""

from __future__ import annotations

import numpy as np

from rlcore.data.batch import Batch
from rlcore.errors import WeightSyncError
from rlcore.plugins.interfaces import TrainBackend

_SAMPLES = 8
_LIMIT = 1.0  # nats; kernels in bf16 differ by up to 0.5 on single tokens, stale weights by several


def compare_logprobs(batch: Batch, policy: TrainBackend) -> dict[str, float]:
    """Metrics of how far ``rollout_logprobs`` are from the policy's own on the first few samples; none without a token.

    Raises WeightSyncError if any token's differ by more than one nat.
    """
    probe = batch.select(np.arange(min(len(batch), _SAMPLES)))
    apart = np.abs(policy.forward(probe, ["logprobs"])["logprobs"] - probe["rollout_logprobs"])[probe["loss_mask"] > 0]
    if not len(apart):
        return {}
    if not apart.max() <= _LIMIT:
        raise WeightSyncError(
            f"the rollout engine does not sample from the trainer's weights: log-probs of {len(apart)} probed tokens "
            f"differ by {apart.mean():.3g} on average and {apart.max():.3g} at most (limit {_LIMIT}); look at the "
            "engine's model path, dtype and temperature"
        )
    return {
        "rollout/logprob_difference_mean": float(apart.mean()),
        "rollout/logprob_difference_max": float(apart.max()),
    }
