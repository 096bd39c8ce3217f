"""Engine and trainer are compared before anything is learnt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rlcore.data.batch import Batch
from rlcore.engine.probe import compare_logprobs
from rlcore.errors import WeightSyncError


class Policy:
    """Log-probs of −1 everywhere."""

    def forward(self, batch: Batch, want: Any) -> Batch:
        return batch.with_tokens(logprobs=np.full(len(batch.tokens), -1.0, np.float32))


def compare(rollout: list[float], mask: list[int]) -> dict[str, float]:
    batch = Batch.from_sequences([range(len(mask))])
    columns = {"rollout_logprobs": np.array(rollout, np.float32), "loss_mask": np.array(mask, np.float32)}
    policy: Any = Policy()
    return compare_logprobs(batch.with_tokens(**columns), policy)


def test_generated_tokens_are_compared_and_no_others() -> None:
    assert compare([50.0, -1.0, -1.5, -0.75], [0, 1, 1, 1]) == {
        "rollout/logprob_difference_mean": 0.25,
        "rollout/logprob_difference_max": 0.5,
    }


def test_nothing_generated_is_nothing_to_compare() -> None:
    assert compare([0.0, 0.0], [0, 0]) == {}


@pytest.mark.parametrize("wrong", [-2.25, float("nan")])
def test_other_weights_end_the_run(wrong: float) -> None:
    with pytest.raises(WeightSyncError, match="does not sample from the trainer's weights: log-probs of 2 probed"):
        compare([0.0, -1.0, wrong], [0, 1, 1])
