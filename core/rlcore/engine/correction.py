"""Importance weights between the engine that sampled and the trainer that learns.

With log ρ_t = log π_trainer − log π_engine at each sampled token, before the step's first update. Truncated importance
sampling (TIS) cuts weights to a cap; masking (as IcePop does it) leaves tokens out whose weight is too large or too
small. Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training".
"""

from __future__ import annotations

import numpy as np

from rlcore.data.batch import Batch
from rlcore.manifest.schema import RolloutCorrectionSection

_MAX_LOG_RATIO = 20.0  # e^20 is 4.9e8, far above any cap


def mismatch_metrics(batch: Batch) -> dict[str, float]:
    """How far engine and trainer are apart on live tokens: differences of log-probs, KL, effective sample size.

    ``rollout/kl`` estimates KL(engine ‖ trainer) by k3; ``rollout/effective_sample_size`` is (Σρ)² / (n Σρ²).
    """
    log_ratio = _log_ratio(batch)[batch["loss_mask"] > 0]
    if not len(log_ratio):
        return {}
    ratio = np.exp(np.clip(log_ratio, -_MAX_LOG_RATIO, _MAX_LOG_RATIO))
    apart = np.abs(log_ratio)
    return {
        "rollout/logprob_difference_mean": float(apart.mean()),
        "rollout/logprob_difference_max": float(apart.max()),
        "rollout/kl": float((ratio - 1 - log_ratio).mean()),
        "rollout/effective_sample_size": float(ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum())),
    }


def correct(batch: Batch, settings: RolloutCorrectionSection) -> tuple[Batch, dict[str, float]]:
    """The batch with ``correction`` (what each token's policy loss is multiplied by), or with tokens masked out.

    Masking takes tokens out of ``loss_mask``, so it comes before the loss weights are made.
    """
    live = batch["loss_mask"] > 0
    log_ratio = np.where(live, _log_ratio(batch), 0)
    if settings.level == "sequence":
        log_ratio = batch.spread(batch.sum_rows(log_ratio))
    weight = np.exp(np.clip(log_ratio, -_MAX_LOG_RATIO, _MAX_LOG_RATIO))
    outside = live & ((weight > settings.cap) | ((weight < settings.floor) & (settings.mode == "mask")))
    metrics = {"rollout/corrected_fraction": float(outside.sum() / max(1, live.sum()))}
    if settings.mode == "mask":
        batch = batch.with_tokens(loss_mask=np.where(outside, 0, batch["loss_mask"]).astype(np.float32))
    weight = np.where(batch["loss_mask"] > 0, np.minimum(weight, settings.cap), 0)
    return batch.with_tokens(correction=weight.astype(np.float32)), metrics


def _log_ratio(batch: Batch) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return batch["old_logprobs"].astype(np.float64) - batch["rollout_logprobs"]
