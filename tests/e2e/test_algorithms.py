"""Whole runs of algorithms that ask for more than groups: dynamic sampling, pairs, a critic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from rlcore.cli import main
from rlcore.engine import prepare
from rlcore.engine.stats import has_spread
from rlcore.errors import NoSpreadError

LETTERS = '''
from rlcore import PluginConfig, hookimpl

class Config(PluginConfig):
    """1 for enough lower-case letters."""
    least: int = 2
    """So many."""

@hookimpl
def rlcore_reward(config: Config):
    return lambda sample: float(sum("a" <= c <= "z" for c in sample.response) >= config.least)
'''
SHORT = '''
from rlcore import hookimpl

@hookimpl
def rlcore_reward():
    """Longer answers lose a little, so that no two of a group are equal in the sum."""
    return lambda sample: -0.01 * len(sample.response) - 0.001 * sample.index
'''
QUIET = {"eval_every": None, "save_every": None}


def with_dapo(task: Any) -> Any:
    """Answers of which some are right: about half of the groups have spread."""
    (task.folder / "letters.py").write_text(LETTERS)
    (task.folder / "short.py").write_text(SHORT)
    task.manifest["algorithm"] = {"use": "dapo", "overlong_buffer_tokens": 4, "overlong_penalty": 0.5}
    task.manifest["rewards"] = {"letters": {"use": "./letters.py"}, "short": {"use": "./short.py"}}
    task.manifest["run"] |= {"epochs": 6, "max_steps": 5}
    return task


@pytest.fixture
def dapo(task: Any) -> Any:
    return with_dapo(task)


@pytest.fixture(scope="module")
def dapo_straight(tmp_path_factory: pytest.TempPathFactory, new_task: Any) -> list[dict[str, float]]:
    """The metrics of the run that never stopped."""
    rows: list[dict[str, float]] = with_dapo(new_task(tmp_path_factory.mktemp("dapo"))).run()
    return rows


@pytest.fixture
def trained_on(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every group that a batch is made of, in this process."""
    groups: list[Any] = []
    real = prepare.to_batch

    def spy(given: Any) -> Any:
        groups.extend(given)
        return real(given)

    monkeypatch.setattr(prepare, "to_batch", spy)
    return groups


def test_dapo_trains_on_no_group_without_spread(dapo: Any, trained_on: list[Any]) -> None:
    rows = dapo.run()
    assert len(rows) == 5
    assert len(trained_on) == 5 * 4
    assert all(has_spread([sample.rewards["letters"] for sample in group.samples]) for group in trained_on)
    # Nothing was filtered on the sum, where all groups have spread.
    assert all(row["group/zero_spread_fraction"] == 0 for row in rows)
    assert sum(row["group/dropped_fraction"] for row in rows) > 0
    assert max(row["group/generation_rounds"] for row in rows) > 1
    for row in rows:
        sampled = pq.read_table(dapo.folder / f"runs/tiny/rollouts/step_{row['step']:06}.parquet").num_rows / 4
        assert row["group/dropped_fraction"] == pytest.approx(1 - 4 / sampled)


def test_dapo_without_its_dynamic_sampling(dapo: Any, trained_on: list[Any]) -> None:
    rows = dapo.run(dapo.write(algorithm={"dynamic_sampling": None}))
    assert all("group/generation_rounds" not in row for row in rows)
    assert not all(has_spread([sample.rewards["letters"] for sample in group.samples]) for group in trained_on)


@pytest.mark.parametrize(("event", "step"), [("log", 3), ("generate", 2), ("update", 3)])
def test_dynamic_sampling_killed_and_resumed_is_never_stopped(
    dapo: Any, dapo_straight: list[dict[str, float]], event: str, step: int
) -> None:
    dapo.kill_at(event, step)
    assert dapo.run(resume=True) == dapo_straight


def test_without_spread_anywhere_it_stops_and_keeps_the_checkpoint(dapo: Any, capsys: Any) -> None:
    dapo.run(dapo.write(run={"max_steps": 2}))
    path = dapo.write(
        rewards={"letters": {"use": "./letters.py", "least": 100}},
        algorithm={"dynamic_sampling": {"max_generation_rounds": 2}},
    )
    with pytest.raises(NoSpreadError, match=r"only 0 of 4 .* the reward 'letters', out of 8 sampled"):
        dapo.run(path, overwrite=True)
    with pytest.raises(SystemExit) as stop:
        main(["run", str(path), "--overwrite"])
    assert stop.value.code == 1
    assert "only 0 of 4 prompts" in " ".join(capsys.readouterr().err.split())


def test_dpo_starts_at_the_reference_and_widens_the_margin(task: Any) -> None:
    rows = task.run(
        task.write(
            trainer={"epochs_per_batch": 3, "lr": 3e-3},
            algorithm={"use": "dpo", "loss": {"beta": 0.5}},
            run={"max_steps": 3, **QUIET},
        )
    )
    assert all(row["run/updates"] == 3 for row in rows)
    assert all(np.isfinite(row["policy/grad_norm"]) and row["policy/grad_norm"] > 0 for row in rows)
    # Means of three updates, the first of which is at log 2 and margin 0 in the first step.
    assert all(row["policy/loss"] < math.log(2) and row["policy/margin"] > 0 for row in rows)


CRITIC = {"use": "fsdp", "lr": 1e-2, "tokens_per_micro_batch": 256}


@pytest.mark.parametrize("sections", [{"algorithm": {"use": "dpo"}}, {"algorithm": {"use": "ppo"}, "critic": CRITIC}])
def test_what_is_rewarded_is_learnt(task: Any, sections: Any) -> None:
    rows = task.run(
        task.write(
            data={"prompts_per_step": 12},
            rollout={"samples_per_prompt": 8},
            trainer={"lr": 5e-3},
            run={"epochs": 30, **QUIET},
            **sections,
        )
    )
    rewards = [row["reward/mean"] for row in rows]
    assert np.mean(rewards[:3]) < 0.25
    assert np.mean(rewards[-3:]) > 0.5


def test_dpo_at_the_reference_is_log_two(task: Any) -> None:
    (row,) = task.run(task.write(algorithm={"use": "dpo"}, run={"max_steps": 1, **QUIET}))
    assert row["policy/loss"] == pytest.approx(math.log(2), rel=1e-6)
    assert row["policy/margin"] == pytest.approx(0, abs=1e-5)


def test_ppo_trains_policy_and_critic(task: Any) -> None:
    rows = task.run(
        task.write(
            rollout={"samples_per_prompt": 1},
            trainer={"prompts_per_update": 2},
            algorithm={"use": "ppo"},
            critic={**CRITIC, "warmup_steps": 1},
            run={"max_steps": 3, **QUIET},
        )
    )
    assert ["policy/loss" in row for row in rows] == [False, True, True]
    assert all(row["critic/grad_norm"] > 0 and np.isfinite(row["critic/loss"]) for row in rows)
