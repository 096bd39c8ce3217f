"""KL taken off the reward of each token, with a coefficient that is fixed or follows a target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlcore.data.batch import Batch
from rlcore.manifest.schema import KlSection

_MOST_ERROR = 0.2  # a larger distance from the target moves the coefficient no faster


class KlReward:
    """Writes ``token_rewards``: −coef · KL_t at every live token.

    With a ``target`` the coefficient adapts after each step as in Ziegler et al. 2019, arXiv:1909.08593 §2.2, with
    n the step's samples::

        coef ← coef · (1 + clip(KL / target − 1, ±0.2) · n / horizon)

    where KL is the mean over samples of the mean over a sample's live tokens.
    """

    def __init__(self, settings: KlSection) -> None:
        self._settings = settings
        self.coef = settings.coef

    def __call__(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """The batch with ``token_rewards``, from ``old_logprobs`` and ``ref_logprobs``; and metrics."""
        from rlcore.torch.kl import kl_numpy

        live = batch["loss_mask"] > 0
        # where, not times the mask: log-probs of masked tokens may be anything
        kl = np.where(live, kl_numpy(self._settings.estimator, batch["old_logprobs"], batch["ref_logprobs"]), 0)
        tokens = batch.sum_rows(live)
        per_sample = batch.sum_rows(kl)[tokens > 0] / tokens[tokens > 0]
        mean = float(per_sample.mean()) if len(per_sample) else 0.0
        metrics = {"reward/kl_to_reference": mean, "reward/kl_coef": self.coef}
        batch = batch.with_tokens(token_rewards=(-self.coef * kl).astype(np.float32))
        if self._settings.target is not None:
            error = float(np.clip(mean / self._settings.target - 1, -_MOST_ERROR, _MOST_ERROR))
            self.coef *= 1 + error * len(batch) / self._settings.horizon
        return batch, metrics

    def state(self) -> dict[str, Any]:
        """The coefficient, for a checkpoint."""
        return {"coef": self.coef}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved coefficient; a fixed one is the manifest's."""
        if self._settings.target is not None:
            self.coef = float(state["coef"])
