"""Whole runs: what they leave behind, what they compute, and that they learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from rlcore.cli import main
from rlcore.errors import DataError, RewardError


def run_cli(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return int(stop.value.code or 0)


def test_a_run_leaves_its_record(task: Any) -> None:
    rows = task.run(task.write(run={"max_steps": 5, "save_every": 2, "eval_first": True, "keep_rollouts": 2}))
    folder = task.folder / "runs/tiny"
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert ["eval/accuracy" in row for row in rows] == [True, False, True, False, True, True]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step_000004", "step_000005"]
    assert sorted(path.name for path in (folder / "rollouts").iterdir()) == [
        "step_000004.parquet",
        "step_000005.parquet",
    ]
    table = pq.read_table(folder / "rollouts/step_000005.parquet")
    assert table.num_rows == 16
    assert np.mean(table["reward"].to_numpy()) == pytest.approx(rows[-1]["reward/mean"], rel=1e-6)
    assert (folder / "manifest.yaml").exists()
    assert json.loads((folder / "environment.json").read_text())["plugins"]["rlcore-grpo"]


def test_reward_rises(task: Any) -> None:
    rows = task.run(
        task.write(
            data={"prompts_per_step": 12},
            rollout={"samples_per_prompt": 8},
            trainer={"lr": 5e-3},
            run={"epochs": 40, "eval_every": None, "save_every": None},
        )
    )
    rewards = [row["reward/mean"] for row in rows]
    # A random model draws letters 26 times in 261; one that learnt draws hardly anything else.
    assert np.mean(rewards[:3]) < 0.25
    assert np.mean(rewards[-5:]) > 0.7


def test_several_updates_and_epochs_per_step(task: Any) -> None:
    rows = task.run(
        task.write(trainer={"prompts_per_update": 3, "epochs_per_batch": 2}, run={"max_steps": 2, "save_every": None})
    )
    assert [row["run/updates"] for row in rows] == [4, 4]  # 3 prompts, then the 1 that is left, twice
    assert all(row["policy/kl_to_old"] != 0 for row in rows)


def test_one_update_per_step_is_on_policy(task: Any) -> None:
    rows = task.run(task.write(run={"max_steps": 2, "save_every": None}))
    assert [(row["policy/ratio"], row["policy/kl_to_old"], row["policy/clip_fraction"]) for row in rows] == [
        (1, 0, 0)
    ] * 2


@pytest.mark.parametrize("placement", ["loss", "reward"])
def test_kl_to_the_reference_starts_at_zero(task: Any, placement: str) -> None:
    kl = {"in": placement, "coef": 0.1, "estimator": "k3"}
    rows = task.run(task.write(algorithm={"kl": kl}, run={"max_steps": 3, "save_every": None}))
    name = "policy/kl_to_reference" if placement == "loss" else "reward/kl_to_reference"
    assert rows[0][name] == pytest.approx(0, abs=1e-6)
    assert rows[2][name] > 1e-6


def test_bfloat16_and_checkpointing_run(task: Any) -> None:
    rows = task.run(
        task.write(
            model={"dtype": "bfloat16"},
            trainer={"gradient_checkpointing": True},
            run={"max_steps": 2, "save_every": None},
        )
    )
    assert np.isfinite([row["policy/grad_norm"] for row in rows]).all()


def test_sampled_evaluation(task: Any) -> None:
    rows = task.run(
        task.write(
            eval={"samples_per_prompt": 4, "temperature": 1.0, "k": [1, 4]}, run={"max_steps": 2, "save_every": None}
        )
    )
    assert rows[1]["eval/pass@1"] <= rows[1]["eval/pass@4"]
    assert "eval/maj@4" not in rows[1]  # this reward tells no answers to vote on


def test_evaluation_may_answer_at_greater_length(task: Any) -> None:
    rows = task.run(task.write(eval={"max_response_tokens": 20}, run={"max_steps": 2, "save_every": None}))
    assert rows[1]["response/tokens_max"] <= 8 < rows[1]["eval/response_tokens_mean"]


def test_a_reward_that_returns_nan_shows_the_sample(task: Any) -> None:
    (task.folder / "reward.py").write_text(
        "from rlcore import hookimpl\n\n@hookimpl\ndef rlcore_reward():\n    return lambda sample: float('nan')\n"
    )
    with pytest.raises(RewardError, match=r"(?s)letters.*nan.*train\.parquet row"):
        task.run()


def test_bad_data_is_found_before_a_model_is_loaded(task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("rlcore.runtime.launch.start_workers", never)
    with pytest.raises(DataError, match="max_prompt_tokens"):
        task.run(task.write(data={"max_prompt_tokens": 3}))
    assert not (task.folder / "runs").exists()


def test_the_command_line_runs_exports_and_generates(
    task: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    manifest = task.write()
    assert run_cli("run", str(manifest), "--set", "run.max_steps=1") == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(task.folder / "runs/tiny")
    assert run_cli("export", str(task.folder / "runs/tiny"), "--out", str(tmp_path / "hf")) == 0
    assert run_cli("generate", str(tmp_path / "hf"), "--prompt", "x", "--max-tokens", "4") == 0
    assert run_cli("run", str(manifest)) == 2
    assert "holds a run already" in capsys.readouterr().err
