"""Calls the advantage estimator, and looks at what it returns before anything is trained on it."""

from __future__ import annotations

import numpy as np

from rlcore.data.batch import Batch
from rlcore.errors import BrokenPluginError
from rlcore.plugins.blame import blame
from rlcore.plugins.config import PluginRef
from rlcore.plugins.interfaces import AdvantageEstimator

_SHOWN = 5


def estimate(batch: Batch, estimator: AdvantageEstimator, ref: PluginRef) -> Batch:
    """The batch with ``advantages``, and whatever else the estimator adds or drops.

    Raises PluginError where the estimator fails, and BrokenPluginError where it returns no batch, no advantages, or
    advantages of live tokens that are not finite: training on them would go on in silence.
    """
    with blame(ref):
        result: object = estimator(batch)
    if not isinstance(result, Batch):
        raise BrokenPluginError(
            f"{ref} must return a Batch, such as batch.with_tokens(advantages=…), not {result!r:.80}"
        )
    for name in ("advantages", "returns"):
        if name not in result.token_columns:
            if name == "advantages":
                raise BrokenPluginError(f"{ref} returned a batch without the token column 'advantages'")
            continue
        bad = ~np.isfinite(result[name]) & (result["loss_mask"] > 0)
        if bad.any():
            rows = np.unique(result.rows[bad])
            shown = ", ".join(map(str, rows[:_SHOWN])) + (" …" if len(rows) > _SHOWN else "")
            raise BrokenPluginError(
                f"{ref} gave {name} that are not finite to {len(rows)} of {len(result)} samples (rows {shown}); "
                f"their rewards are {result['reward'][rows[:_SHOWN]].tolist()}"
            )
    return result
