"""A run that is killed and resumed is the run that never stopped, bit for bit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rlcore.errors import CheckpointError, RunFolderError

# Two epochs of three steps, evaluated at 2, 4, 6 and saved after each.
MOMENTS = [*(("log", step) for step in range(1, 7)), ("generate", 2), ("update", 3), ("evaluate", 3), ("save", 4)]


def test_the_same_seed_gives_the_same_metrics(task: Any, straight: Any) -> None:
    assert len(straight) == 6
    assert task.run() == straight


@pytest.mark.parametrize(("event", "step"), MOMENTS)
def test_killed_and_resumed_is_never_stopped(task: Any, straight: Any, event: str, step: int) -> None:
    task.kill_at(event, step)
    assert task.run(resume=True) == straight
    # Killed in the log of a step: that step was not saved yet, so it is done again from the one before.
    aside = sorted((task.folder / "runs/tiny").glob("metrics.set_aside-*.jsonl"))
    assert [json.loads(line)["step"] for file in aside for line in file.read_text().splitlines()] == (
        [step] if event in ("log", "save") else []
    )


def test_a_cut_checkpoint_is_passed_over_with_a_warning(task: Any, straight: Any, capsys: Any) -> None:
    task.kill_at("log", 4)
    newest = task.folder / "runs/tiny/checkpoints/step_000003/model/model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-7])
    assert task.run(task.write(run={"trackers": ["console", "jsonl"]}), resume=True) == straight
    shown = " ".join(capsys.readouterr().out.split())
    assert "step_000003, which is not whole: model/model.safetensors has" in shown
    assert "going on after step 2" in shown


def test_a_named_checkpoint_that_is_cut_is_an_error(task: Any) -> None:
    task.kill_at("log", 4)
    (task.folder / "runs/tiny/checkpoints/step_000003/state.json").unlink()
    with pytest.raises(CheckpointError, match=r"step_000003 is not whole: state\.json is missing"):
        task.run(resume="3")


def test_a_named_checkpoint_is_gone_on_from(task: Any, straight: Any) -> None:
    task.run()
    assert task.run(resume="step_000005") == straight


def test_more_epochs_go_on_with_new_orders(task: Any) -> None:
    task.run(task.write(run={"epochs": 1}))
    longer = task.run(task.write(run={"epochs": 2}), resume=True)
    assert [row["step"] for row in longer] == [1, 2, 3, 4, 5, 6]
    assert [row["run/epoch"] for row in longer] == [0, 0, 0, 1, 1, 1]


def test_nothing_is_overwritten(task: Any) -> None:
    task.run()
    with pytest.raises(RunFolderError, match=r"holds a run already.*--resume goes on with it"):
        task.run()
    assert len(task.run(overwrite=True)) == 6


def test_another_manifest_is_refused_by_key(task: Any) -> None:
    task.run(task.write(run={"epochs": 1}))
    changed = task.write(data={"prompts_per_step": 3}, rollout={"temperature": 0.5})
    with pytest.raises(CheckpointError, match=r"data\.prompts_per_step: 4 when the run was started, now 3"):
        task.run(changed, resume=True)


def test_resume_without_a_run_says_so(task: Any) -> None:
    with pytest.raises(RunFolderError, match="no run to resume"):
        task.run(resume=True)
