"""SIGKILL in the middle of a save never costs the checkpoint before it."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rlcore.run.checkpoints import CheckpointStore, recover

BEFORE_EACH_OPERATION = """
import os, signal, sys
from pathlib import Path
from rlcore.run.checkpoints import CheckpointStore

def write(folder):
    (folder / "model").mkdir()
    (folder / "model" / "weights").write_text("weights" * 100)
    (folder / "optimizer").write_text("moments")

def save(folder, step):
    CheckpointStore(folder, keep=1).save(step, write, {"step": step})

WATCHED = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "os.listdir"}
root, again = Path(sys.argv[1]), sys.argv[2] == "again"
save(root / "warm-up", 1)
nth = 0
while True:
    nth += 1
    folder = root / str(nth)
    save(folder, 1)
    child = os.fork()
    if not child:
        count = 0
        def hook(event, arguments):
            global count
            if event in WATCHED and (count := count + 1) == nth:
                os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        save(folder, 1 if again else 2)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
"""


@pytest.mark.parametrize("step", ["next", "again"])
def test_killed_before_every_single_file_operation(tmp_path: Path, step: str) -> None:
    subprocess.run([sys.executable, "-c", BEFORE_EACH_OPERATION, tmp_path, step], check=True, timeout=120)
    folders = sorted((path for path in tmp_path.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
    assert len(folders) > 30  # a save has at least so many operations
    seen = []
    for folder in folders:
        warnings: list[str] = []
        recover(folder)
        store = CheckpointStore(folder, keep=1, warn=warnings.append)
        latest = store.latest()
        assert latest is not None, folder.name
        assert warnings == [], folder.name
        assert latest.state == {"step": latest.step}
        assert (latest.path / "model" / "weights").read_text() == "weights" * 100
        seen.append(latest.step)
        store.save(3, lambda folder: (folder / "x").touch(), {})
        assert [path.name for path in folder.iterdir()] == ["step_000003"]
    if step == "next":
        assert seen == sorted(seen)  # first the old one, then the new one, with no gap between
        assert set(seen) == {1, 2}


SAVES_FOR_EVER = """
import sys
from pathlib import Path
from rlcore.run.checkpoints import CheckpointStore

def write(folder):
    for name in "abc":
        (folder / name).write_bytes(bytes([step % 256]) * 400_000)

step = 0
while True:
    step += 1
    CheckpointStore(Path(sys.argv[1]), keep=1).save(step, write, {"step": step})
    print(step, flush=True)
"""


def test_killed_at_random_moments(tmp_path: Path) -> None:
    rng = random.Random(0)
    process = None
    for round_ in range(6):
        folder = tmp_path / str(round_)
        process = subprocess.Popen([sys.executable, "-c", SAVES_FOR_EVER, folder], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process, process.stdout:
            process.stdout.readline()
            time.sleep(rng.uniform(0.0, 0.15))
            process.send_signal(signal.SIGKILL)
            said = [int(line) for line in process.stdout.read().split()]
        recover(folder)
        latest = CheckpointStore(folder, keep=1).latest()
        assert latest is not None
        assert latest.step >= max(said, default=1)
        assert {(latest.path / name).read_bytes() for name in "abc"} == {bytes([latest.step % 256]) * 400_000}
