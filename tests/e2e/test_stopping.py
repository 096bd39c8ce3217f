"""Ctrl-C and SIGTERM: the last whole step is saved, the exit code is the shell's, and nothing is left running."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import psutil
import pytest


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_ends(task: Any, straight: Any, number: signal.Signals, code: int) -> None:
    slow = task.write(rewards={"letters": {"use": "./reward.py", "sleep_seconds": 0.05}}, run={"save_every": None})
    process = task.start(slow)
    metrics = task.folder / "runs/tiny/metrics.jsonl"
    deadline = time.monotonic() + 100
    while not (metrics.exists() and len(metrics.read_text().splitlines()) >= 2) and time.monotonic() < deadline:
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert f"stopped by {number.name}; go on with --resume" in err
    assert not any(child.is_running() for child in children)
    (saved,) = (task.folder / "runs/tiny/checkpoints").iterdir()
    done = json.loads((saved / "complete.json").read_text())["step"]
    assert 2 <= done < 6
    assert task.run(slow, resume=True) == straight
