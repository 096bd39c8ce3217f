"""A run with a learned critic, by an estimator in a local file: advantages over the values, returns to fit them to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

ESTIMATOR = '''
import numpy as np
from rlcore import AlgorithmConfig, hookimpl

class Config(AlgorithmConfig):
    """A token's return is its sample's reward, its advantage how far that is above the critic's value."""
    def needs(self):
        return frozenset({"batch:values"})
    def defaults(self):
        return {"loss": "clip", "aggregate": "token-mean"}

@hookimpl
def rlcore_advantage_estimator(config: Config):
    def estimate(batch):
        live = batch["loss_mask"] > 0
        returns = np.where(live, batch.spread(batch["reward"]), 0)
        return batch.with_tokens(advantages=np.where(live, returns - batch["values"], 0), returns=returns)
    return estimate
'''

NAMES = ("loss", "clip_fraction", "value_mean", "return_mean", "explained_variance", "grad_norm", "lr")


@pytest.fixture
def critic_task(task: Any) -> Any:
    return with_critic(task)


def with_critic(task: Any, **critic: Any) -> Any:
    (task.folder / "est.py").write_text(ESTIMATOR)
    task.manifest["algorithm"] = {"use": "./est.py"}
    task.manifest["critic"] = {"use": "fsdp", "lr": 1e-2, "tokens_per_micro_batch": 128, **critic}
    # Two updates a step, so that values move away from those before it.
    task.manifest["trainer"] = {**task.manifest["trainer"], "prompts_per_update": 2}
    task.manifest["run"] = {**task.manifest["run"], "keep_checkpoints": 6}
    return task


def model_at(task: Any, step: int, role: str = "") -> dict[str, np.ndarray[Any, Any]]:
    folder: Path = task.folder / "runs/tiny/checkpoints" / f"step_{step:06d}" / role / "model"
    return load_file(folder / "model.safetensors")


def test_the_critic_learns_what_to_expect(critic_task: Any) -> None:
    rows = critic_task.run()
    assert len(rows) == 6
    for row in rows:
        assert all(np.isfinite(row[f"critic/{name}"]) for name in NAMES)
        assert row["critic/lr"] == 1e-2
        assert row["policy/lr"] == 1e-3
        assert row["critic/return_mean"] == pytest.approx(row["reward/mean"], abs=0.2)  # over tokens, and over samples
    apart = [abs(row["critic/value_mean"] - row["critic/return_mean"]) for row in rows]
    assert max(apart[-2:]) < apart[0] / 2
    assert rows[0]["critic/explained_variance"] == pytest.approx(0, abs=1e-6), "the first values are all 0"
    first, last = model_at(critic_task, 1, "critic"), model_at(critic_task, 6, "critic")
    assert first.keys() == last.keys()
    assert last["score.weight"].shape == (1, 32)
    assert not any(np.array_equal(first[name], last[name]) for name in first)


@pytest.mark.parametrize(("event", "step"), [("update", 2), ("log", 3), ("save", 4)])
def test_killed_and_resumed_is_never_stopped(
    critic_task: Any, straight_with_critic: list[dict[str, float]], event: str, step: int
) -> None:
    critic_task.kill_at(event, step)
    assert critic_task.run(resume=True) == straight_with_critic


@pytest.fixture(scope="module")
def straight_with_critic(tmp_path_factory: pytest.TempPathFactory, new_task: Any) -> list[dict[str, float]]:
    rows: list[dict[str, float]] = with_critic(new_task(tmp_path_factory.mktemp("straight"))).run()
    return rows


def test_the_policy_waits_for_the_critic_to_warm_up(task: Any, tiny_model: Path) -> None:
    task.manifest["trainer"] = {**task.manifest["trainer"], "schedule": "linear"}
    rows = with_critic(task, warmup_steps=2).run()
    start = load_file(tiny_model / "model.safetensors")
    for step, row in enumerate(rows, start=1):
        model = model_at(task, step)
        waits = step <= 2
        assert all(np.array_equal(model[name], start[name]) for name in start) is waits
        assert ("policy/loss" in row) is not waits
        assert "critic/loss" in row
        assert row["run/updates"] == 2
    # Twelve updates, of which eight are the policy's: the mean of the last two rates is that after 6.5 of 8.
    assert rows[-1]["policy/lr"] == pytest.approx(1e-3 * (1 - 6.5 / 8))
    critics = [model_at(task, step, "critic")["score.weight"] for step in (1, 2)]
    assert not np.array_equal(*critics)
    resumed = task.run(resume="1")
    assert resumed == rows, "a resumed run knows how warm the critic is"


def test_a_critic_may_start_from_another_runs(critic_task: Any) -> None:
    critic_task.run()
    folder = critic_task.folder / "runs/tiny/checkpoints/step_000006/critic/model"
    rows = critic_task.run(critic_task.write(name="again", critic={"path": str(folder)}))
    assert rows[0]["critic/value_mean"] > 0.1
    assert rows[0]["critic/explained_variance"] != 0
