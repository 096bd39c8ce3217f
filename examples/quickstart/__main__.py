"""The main job from nothing, in minutes, on a CPU: make a model, train it by GRPO, export it, ask it.

    python examples/quickstart [--seed 0] [--out quickstart]

Everything lands in the first free folder out/1, out/2, …; the manifest there is yours to edit and run again.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import task
import warm_start

HERE = Path(__file__).parent
QUESTION = task.question(27, 58)


def main() -> None:
    """All steps, each printed before it runs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("quickstart"))
    arguments = parser.parse_args()
    start = time.monotonic()

    folder = first_free(arguments.out)
    manifest = folder / "grpo.yaml"
    shutil.copy(HERE / "grpo.yaml", manifest)
    task.write(folder, arguments.seed)
    say(f"1/4  Teach a new model by example until it is right about a third of the time: {folder / 'model'}")
    warm_start.warm_start(manifest, folder / "model", arguments.seed)

    say("2/4  Go on by reinforcement learning: nothing but a reward for right answers")
    rlcore("run", str(manifest), "--set", f"run.seed={arguments.seed}")
    run = folder / "runs" / "grpo"

    say("3/4  Export a plain Hugging Face model")
    rlcore("export", str(run), "--out", str(folder / "hf"))

    say("4/4  Ask it")
    rlcore("generate", str(folder / "hf"), "--prompt", QUESTION)

    before, after = accuracies(run)
    say(f"Held-out accuracy (greedy, {task.HELD_OUT} problems): {before:.1%} before, {after:.1%} after GRPO")
    rlcore("report", str(run))
    print(f"{time.monotonic() - start:.0f} s in all")
    command = shlex.join(["rlcore", "run", str(manifest), "--set", "name=mine"])
    print(f"Now edit {manifest} and try: {command}")


def first_free(out: Path) -> Path:
    """Make and return the first of out/1, out/2, … that is not there yet."""
    out.mkdir(parents=True, exist_ok=True)
    number = 1
    while (out / str(number)).exists():
        number += 1
    folder = out / str(number)
    folder.mkdir()
    return folder


def rlcore(*arguments: str) -> None:
    """Run the command line tool, showing the command."""
    print("$", shlex.join(["rlcore", *arguments]), flush=True)
    subprocess.run([sys.executable, "-m", "rlcore", *arguments], check=True)


def accuracies(run: Path) -> tuple[float, float]:
    """First and last held-out accuracy of a run."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    seen = [metrics["eval/accuracy"] for metrics in map(json.loads, lines) if "eval/accuracy" in metrics]
    return seen[0], seen[-1]


def say(text: str) -> None:
    """A line that stands out."""
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
