"""A reward of seven lines in a folder of its own, installed by pip outside this repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "my-reward"
version = "0.3.1"
description = "Short answers score"
dependencies = ["rlcore>=0.1"]

[project.entry-points."rlcore.rewards"]
short-answer = "my_reward.plugin"
"""

PLUGIN = '''
from rlcore import PluginConfig, hookimpl

class Config(PluginConfig):
    """Score 1.0 for answers of at most ``max_words`` words, else 0.0."""
    max_words: int = 50

@hookimpl
def rlcore_reward(config: Config):
    return lambda sample: float(len(sample.response.split()) <= config.max_words)
'''


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that has ``my-reward`` installed."""
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "my_reward").mkdir(parents=True)
    (source / "pyproject.toml").write_text(PYPROJECT)
    (source / "my_reward" / "__init__.py").touch()
    (source / "my_reward" / "plugin.py").write_text(PLUGIN)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--target", target, source], check=True)
    return {**os.environ, "PYTHONPATH": str(target)}


def python(code: str, env: dict[str, str], cwd: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=cwd, capture_output=True, text=True, check=True
    ).stdout


def test_it_is_listed_shown_checked_and_scores(installed, tmp_path: Path) -> None:
    rlcore = "import sys; from rlcore.cli import main; sys.argv[1:] = {!r}; main()"
    listed = json.loads(python(rlcore.format(["plugins", "--kind", "reward", "--json"]), installed, tmp_path))
    assert [row for row in listed if row["name"] == "short-answer"] == [
        {
            "kind": "reward",
            "name": "short-answer",
            "version": "0.3.1",
            "distribution": "my-reward",
            "status": "ok",
            "summary": "Short answers score",
            "module": "my_reward.plugin",
            "fix": "",
        }
    ]
    shown = python(rlcore.format(["plugins", "show", "reward/short-answer"]), installed, tmp_path)
    assert "Score 1.0 for answers of at most ``max_words`` words, else 0.0." in shown
    assert "max_words  int   50" in shown
    checked = python(rlcore.format(["plugins", "check", "--kind", "reward"]), installed, tmp_path)
    assert [line.split()[-1] for line in checked.splitlines() if "short-answer" in line] == ["ok"]
    build = (
        "from types import SimpleNamespace as S; from rlcore.plugins.config import PluginRef as R\n"
        "from rlcore.plugins.loading import build\n"
        "score = build(R('reward', 'short-answer', {'max_words': 2}))\n"
        "print(score(S(response='a b')), score(S(response='a b c')))"
    )
    assert python(build, installed, tmp_path) == "1.0 0.0\n"
