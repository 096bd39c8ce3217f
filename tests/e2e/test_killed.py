"""SIGKILL at moments that nobody chose: whatever is left, the resumed run is the run that never stopped."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from rlcore.run.checkpoints import faults

DURATION_SECONDS = 3.0
"""About as long as the task takes from the lock of its folder to its end."""


def wait_for_lock(process: subprocess.Popen[str], folder: Path) -> None:
    """Wait until the process holds the run's folder, which it does just before it loads the model, or has ended."""
    while process.poll() is None:
        with contextlib.suppress(OSError, ValueError):
            if json.loads((folder / ".rlcore.lock").read_text())["pid"] == process.pid:
                return
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 3), *(pytest.param(seed, 5, marks=pytest.mark.soak) for seed in range(2, 6))]
)
def test_killed_again_and_again(task: Any, straight: Any, seed: int, kills: int) -> None:
    chance = random.Random(seed)
    manifest = task.write()
    folder = task.folder / "runs/tiny"
    for _ in range(kills):
        started = (folder / "manifest.yaml").exists()
        process = task.start(manifest, "--resume" if started else "--overwrite")
        wait_for_lock(process, folder)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0, DURATION_SECONDS))
        process.kill()
        _, err = process.communicate()
        assert process.returncode in (0, -9), err
        found = {path.name: faults(path) for path in (folder / "checkpoints").glob("step_*")}
        assert not any(found.values()), found
    resume = (folder / "manifest.yaml").exists()
    assert task.run(resume=resume, overwrite=not resume) == straight
    assert not [path for path in folder.rglob(".*") if ".tmp" in path.name or ".old" in path.name]
