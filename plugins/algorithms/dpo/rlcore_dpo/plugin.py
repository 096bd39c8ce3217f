"""The advantage estimator ``dpo``: it makes the pairs that the loss ``dpo`` compares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlcore import AlgorithmConfig, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlcore import AdvantageEstimator, Batch


class Config(AlgorithmConfig):
    """Direct preference optimization: the best sample of a group against the worst, or pairs that the data brings."""

    def needs(self) -> frozenset[str]:
        """More than one sample of each prompt."""
        return frozenset({"groups"})

    def provides(self) -> frozenset[str]:
        """What the loss compares."""
        return frozenset({"pairs"})

    def defaults(self) -> Mapping[str, Any]:
        """The paper's loss; with this average it is the mean over pairs."""
        return {"loss": "dpo", "aggregate": "seq-mean-token-mean"}


@hookimpl
def rlcore_advantage_estimator(config: Config) -> AdvantageEstimator:
    """Keeps the two rows of each pair: one ``unit``, with advantages 1 for the better and −1 for the worse."""
    import numpy as np
    from rlcore.data.groups import with_advantages

    from rlcore_dpo.pairs import best_and_worst

    def estimate(batch: Batch) -> Batch:
        chosen, rejected = best_and_worst(batch)
        sign, units = np.zeros(len(batch)), batch["unit"].copy()
        sign[chosen], sign[rejected] = 1.0, -1.0
        units[rejected] = units[chosen]
        return with_advantages(batch, batch.spread(sign)).with_samples(unit=units).select(sign != 0)

    return estimate
