"""Ctrl-C and SIGTERM: the last whole step is saved, the exit code is the shell's, and nothing is left running."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import psutil
import pytest
from rlcore.run.checkpoints import faults


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


TELLER = """
import time
from rlcore import Tracker, hookimpl

class Teller(Tracker):
    def phase(self, name, done=0, total=0):
        print(name, flush=True)
        if name == "save":
            time.sleep(0.5)

@hookimpl
def rlcore_tracker():
    return Teller()
"""


@pytest.mark.parametrize(
    ("phase", "numbers", "codes", "saved"),
    [
        ("load", [signal.SIGINT], {130}, 0),
        ("generate", [signal.SIGTERM], {143}, 0),
        ("save", [signal.SIGINT], {130}, 1),
        # The second one doesn't wait: the checkpoint that was being written goes, and nothing half is left.
        ("save", [signal.SIGINT] * 2, {130, -signal.SIGINT}, 0),
        ("save", [signal.SIGTERM] * 2, {143, -signal.SIGTERM}, 0),
    ],
)
def test_wherever_a_signal_comes(
    task: Any, phase: str, numbers: list[signal.Signals], codes: set[int], saved: int
) -> None:
    (task.folder / "teller.py").write_text(TELLER)
    process = task.start(task.write(run={"trackers": ["jsonl", {"use": "./teller.py"}]}))
    assert process.stdout is not None
    while process.stdout.readline().strip() not in (phase, ""):
        pass
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.1)
    out, err = process.communicate(timeout=60)
    assert process.returncode in codes, err
    assert "Traceback" not in err
    checkpoints = task.folder / "runs/tiny/checkpoints"
    if "stopped by" in err:
        assert ("go on with --resume" if saved else "nothing is saved yet") in err
        assert out.splitlines()[-1] == "stopped"  # the phase that trackers hear of last
    assert [faults(path) for path in checkpoints.glob("step_*")] == [[]] * saved
