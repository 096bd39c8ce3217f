"""Whole runs with each loss of rlcore-losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

SELECTING = {"clip-cov": {"fraction": 0.05, "cov_low": 0.01, "cov_high": 100}, "kl-cov": {"fraction": 0.05}}


@pytest.mark.parametrize("name", ["gspo", "cispo", "gmpo", "sapo", "clip-cov", "kl-cov", "reinforce"])
def test_a_run_with_several_updates_a_step(task: Any, name: str) -> None:
    loss = {"use": name, **SELECTING.get(name, {})}
    rows = task.run(
        task.write(
            trainer={"prompts_per_update": 2},
            algorithm={"loss": loss},
            run={"max_steps": 2, "save_every": None, "eval_every": None},
        )
    )
    assert [row["run/updates"] for row in rows] == [2, 2]
    assert all(np.isfinite(row["policy/grad_norm"]) and row["policy/grad_norm"] > 0 for row in rows)
    if name in SELECTING:
        assert all(0 < row["policy/selected_fraction"] <= 0.05 for row in rows)


def test_a_choice_of_tokens_with_one_update_a_step_has_its_log_probs(task: Any) -> None:
    """Nothing else reads the log-probs before the update there; the loss asks for them."""
    loss = {"use": "clip-cov", **SELECTING["clip-cov"]}
    (row,) = task.run(
        task.write(algorithm={"loss": loss}, run={"max_steps": 1, "save_every": None, "eval_every": None})
    )
    assert row["run/updates"] == 1
    assert row["policy/selected_fraction"] > 0
