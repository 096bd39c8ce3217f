"""A whole run in seconds: a tiny model, twelve prompts, a reward and a tracker in local files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from rlcore.manifest.load import load_manifest
from rlcore.runtime.launch import launch
from rlcore.testing.tiny import write_tiny_model

REWARD = '''
from rlcore import PluginConfig, hookimpl

class Config(PluginConfig):
    """The share of characters that are lower-case letters."""
    sleep_seconds: float = 0.0
    """How long each sample takes."""

@hookimpl
def rlcore_reward(config: Config):
    import time
    def score(sample):
        time.sleep(config.sleep_seconds)
        return sum("a" <= c <= "z" for c in sample.response) / max(1, len(sample.response))
    return score
'''

KILLER = '''
import os, signal
from rlcore import PluginConfig, Tracker, hookimpl

class Config(PluginConfig):
    """Kills its own process at a moment."""
    event: str
    """A phase, or log."""
    step: int
    """Steps recorded before that moment, that of the log included."""

class Killer(Tracker):
    def __init__(self, config):
        self.config, self.step = config, 0
    def at(self, event):
        if (event, self.step) == (self.config.event, self.config.step):
            os.kill(os.getpid(), signal.SIGKILL)
    def phase(self, name, done=0, total=0):
        self.at(name)
    def log(self, step, metrics):
        self.step = step
        self.at("log")

@hookimpl
def rlcore_tracker(config: Config):
    return Killer(config)
'''


@dataclass
class Task:
    """A folder with everything that a run needs; ``manifest`` is the file's content."""

    folder: Path
    manifest: dict[str, Any]

    def write(self, **sections: Mapping[str, Any]) -> Path:
        """Write the manifest with these sections' keys replaced, and return its path."""
        values = {key: dict(value) if isinstance(value, dict) else value for key, value in self.manifest.items()}
        for section, keys in sections.items():
            values[section] = {**values.get(section, {}), **keys} if isinstance(keys, Mapping) else keys
        path = self.folder / "run.yaml"
        path.write_text(yaml.safe_dump(values))
        return path

    def run(
        self, path: Path | None = None, *, resume: str | bool = False, overwrite: bool = False
    ) -> list[dict[str, float]]:
        """Run in this process; returns the metrics that can be compared: all but times and speeds."""
        folder = launch(load_manifest(path or self.write()), resume=resume, overwrite=overwrite)
        return self.metrics(folder)

    def start(self, path: Path, *arguments: str) -> subprocess.Popen[str]:
        """``rlcore run`` in a process of its own."""
        command = [sys.executable, "-m", "rlcore", "run", str(path), *arguments]
        env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)

    def kill_at(self, event: str, step: int) -> None:
        """Run until this moment and be killed by SIGKILL there."""
        path = self.write(run={"trackers": ["jsonl", {"use": "./killer.py", "event": event, "step": step}]})
        process = self.start(path)
        out, err = process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL, (out, err)

    @staticmethod
    def metrics(folder: Path) -> list[dict[str, float]]:
        """Every line of a run's metrics, without times and speeds."""
        rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        return [{k: v for k, v in row.items() if not k.startswith(("time/", "speed/"))} for row in rows]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", hidden_size=32, layers=2, initializer_range=0.1)


@pytest.fixture
def task(tmp_path: Path, tiny_model: Path) -> Task:
    return make_task(tmp_path, tiny_model)


@pytest.fixture(scope="session")
def new_task(tiny_model: Path) -> Callable[[Path], Task]:
    """Makes a task in a folder."""
    return lambda folder: make_task(folder, tiny_model)


@pytest.fixture(scope="session")
def straight(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> list[dict[str, float]]:
    """The metrics of the task's run that never stopped."""
    return make_task(tmp_path_factory.mktemp("straight"), tiny_model).run()


def make_task(folder: Path, model: Path) -> Task:
    """Twelve prompts, four a step: three steps an epoch."""
    for split, count in (("train", 12), ("val", 5)):
        rows = [{"question": f"{split} {i}: " + "x" * (i % 3), "answer": str(i)} for i in range(count)]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{split}.parquet")
    (folder / "reward.py").write_text(REWARD)
    (folder / "killer.py").write_text(KILLER)
    manifest = {
        "rlcore": 1,
        "name": "tiny",
        "model": {"path": str(model), "dtype": "float32"},
        "data": {
            "train": "train.parquet",
            "val": "val.parquet",
            "columns": {"prompt": "question", "ground_truth": "answer"},
            "source": "test",
            "prompts_per_step": 4,
            "max_prompt_tokens": 32,
            "max_response_tokens": 8,
        },
        "trainer": {"use": "fsdp", "lr": 1e-3, "tokens_per_micro_batch": 256},
        "rollout": {"use": "hf", "samples_per_prompt": 4},
        "algorithm": {"use": "grpo"},
        "rewards": {"letters": {"use": "./reward.py"}},
        "resources": {"device": "cpu", "threads": 1},
        "run": {"epochs": 2, "eval_every": 2, "save_every": 1, "trackers": ["jsonl"]},
    }
    return Task(folder, manifest)
