"""What a run says before it trains, and what it refuses without loading anything."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from rlcore.errors import CheckpointError, RunFolderError
from rlcore.manifest.load import load_manifest
from rlcore.run.folder import RunFolder
from rlcore.runtime.launch import launch


@pytest.fixture
def no_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where libraries, data or models would be loaded."""

    def never(*_: Any) -> None:
        raise AssertionError("something heavy was loaded")

    monkeypatch.setattr("rlcore.runtime.launch._prepare", never)


def test_the_folder_is_looked_at_first(task: Any, no_loading: None) -> None:
    path = task.write()
    with pytest.raises(RunFolderError, match="no run to resume"):
        task.run(path, resume=True)
    folder = task.folder / "runs/tiny"
    loaded = load_manifest(path)
    with RunFolder.create(folder, overwrite=False) as held:
        held.write_record(loaded.resolved())
        for choice in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(RunFolderError, match="is in use"):
                task.run(path, **choice)
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(RunFolderError, match="holds a run already"):
        task.run(path)
    with pytest.raises(CheckpointError, match=r"no checkpoint '7' in .*; it has: none"):
        task.run(path, resume="7")
    with pytest.raises(CheckpointError, match="now 3; a run can't change this"):
        task.run(task.write(data={"prompts_per_step": 3}), resume=True)


def test_a_refusal_imports_no_torch(task: Any) -> None:
    code = (
        "import sys; from rlcore.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, "run", str(task.write()), "--resume"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"
    assert done.stderr.startswith("error: there is no run to resume in ")


def test_the_first_sign_of_life_comes_before_loading(task: Any, no_loading: None) -> None:
    said: list[str] = []
    with pytest.raises(AssertionError, match="something heavy"):
        launch(load_manifest(task.write()), say=said.append)
    assert said == ["loading libraries and data …"]


def test_a_finished_run_has_nothing_to_do(task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = task.write(run={"max_steps": 1, "eval_every": None})
    before = task.run(path)

    def never(*_: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("rlcore.runtime.launch.start_workers", never)
    said: list[str] = []
    launch(load_manifest(path), resume=True, say=said.append)
    assert said[-1] == "nothing to do: 1 of 1 steps are done"
    assert task.metrics(task.folder / "runs/tiny") == before


def test_what_changes_a_resumed_run_is_a_warning(task: Any, capsys: pytest.CaptureFixture[str]) -> None:
    task.run(task.write(run={"max_steps": 1, "trackers": ["console", "jsonl"]}))
    capsys.readouterr()
    task.run(task.write(trainer={"lr": 5e-4}, run={"max_steps": 2, "trackers": ["console", "jsonl"]}), resume=True)
    lines = capsys.readouterr().out.splitlines()
    assert (
        "warning: trainer.lr: 0.001 when the run was started, now 0.0005; it counts from the resumed step on" in lines
    )
    assert "run.max_steps: 1 when the run was started, now 2" in lines


def test_health_warnings_name_their_step(task: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (task.folder / "reward.py").write_text(
        "from rlcore import hookimpl\n\n@hookimpl\ndef rlcore_reward():\n    return lambda sample: 0.0\n"
    )
    task.run(task.write(run={"max_steps": 1, "eval_every": None, "trackers": ["console", "jsonl"]}))
    assert "warning: step 1: in 100% of the groups every sample got the same reward" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["generate", "eval", "export"])
def test_without_torch_a_command_names_what_to_install(task: Any, command: str) -> None:
    """Torch is hidden by a finder in front of all others: the environment of the core alone."""
    code = """
import sys
class Hidden:
    def find_spec(name, path=None, target=None):
        if name in ("torch", "transformers", "tokenizers", "safetensors"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden)
from rlcore.cli import main
main(sys.argv[1:])
"""
    arguments = {
        "generate": [task.manifest["model"]["path"], "--prompt", "x"],
        "eval": [str(task.write())],
        "export": [str(task.folder / "runs/tiny"), "--out", str(task.folder / "hf")],
    }[command]
    if command == "export":
        task.run(task.write(run={"max_steps": 1, "eval_every": None}))
    done = subprocess.run(
        [sys.executable, "-c", code, command, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert line.endswith('in the checkout of rlcore, run: pip install -e ".[torch]"')
