"""The numbers that verl 0.9.1 gives for one small update, and the options that give them here.

Sequences of 3, 2, 4 and 1 tokens, one advantage each, ranges 0.2 and 0.28.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from rlcore.data.batch import Batch
from rlcore.data.loss_weights import loss_weights
from rlcore.plugins.config import PluginRef
from rlcore.plugins.interfaces import LossSpec
from rlcore.torch.objective import Objective

LENGTHS = [3, 2, 4, 1]
PI = np.log(np.float32([0.5, 0.4, 0.3, 0.2, 0.6, 0.7, 0.7, 0.1, 0.5, 0.3]))
OLD = np.log(np.float32([0.4, 0.5, 0.3, 0.5, 0.6, 0.1, 0.7, 0.4, 0.5, 0.6]))
RANGES = {"clip_low": 0.2, "clip_high": 0.28}


def loss_of(name: str, aggregate: str, covariance_of: np.ndarray[Any, Any] = OLD, **options: Any) -> float:
    """The loss of the update; the covariance is taken of these log-probs."""
    batch = Batch.from_sequences([range(n) for n in LENGTHS]).with_tokens(
        loss_mask=np.ones(10, np.float32),
        advantages=np.repeat(np.float32([1, -1, -1, 1]), LENGTHS),
        old_logprobs=covariance_of,
    )
    objective = Objective(LossSpec(PluginRef("loss", name, options)))
    if hasattr(objective.policy, "prepare"):
        batch = objective.policy.prepare(batch)
    batch = batch.with_tokens(old_logprobs=OLD, loss_weights=loss_weights(batch, aggregate, max_response_tokens=4))
    columns = {key: torch.tensor(column) for key, column in batch.token_columns.items()}
    loss, _ = objective(torch.tensor(PI), None, columns, torch.tensor(batch.rows), 4)
    return loss.item()


@pytest.mark.parametrize(
    ("name", "aggregate", "options", "value"),
    [
        ("gspo", "token-mean", RANGES, 0.270065),  # its version 0.9.1 takes the configured average,
        ("gspo", "seq-mean-token-mean", RANGES, 0.112541),  # its main branch always this one
        ("sapo", "seq-mean-token-mean", {}, 0.072129),  # whatever average is configured
        ("gmpo", "seq-mean-token-mean", RANGES, 0.238021),  # whatever average is configured
        ("cispo", "token-mean", RANGES, -0.138019),
        ("reinforce", "token-mean", {}, -0.181196),  # its gpg
    ],
)
def test_values_of_verl(name: str, aggregate: str, options: dict[str, float], value: float) -> None:
    assert loss_of(name, aggregate, **options) == pytest.approx(value, abs=1e-6)


def test_kl_cov_of_verl_chooses_by_the_current_policy() -> None:
    """verl takes the covariance of log-probs in the middle of the update; here they are those before it.

    With verl's the chosen token is the one of ratio ¼, with ours the one of ratio 7.
    """
    assert loss_of("kl-cov", "token-mean", covariance_of=PI, coef=0.1) == pytest.approx(0.723863, abs=1e-6)
    without = 0.723863 - 0.1 * np.log(4) / 10  # coef |log ρ| at one of ten tokens
    assert loss_of("kl-cov", "token-mean", coef=0.1) == pytest.approx(without + 0.1 * np.log(7) / 10, abs=1e-6)
