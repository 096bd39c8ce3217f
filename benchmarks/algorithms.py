"""Which algorithms learn: two-digit additions from one shared warm start, on one core of a CPU.

    python benchmarks/algorithms.py [--seeds 3] [--algorithms grpo dapo …] [--folder DIR]

Prints for each run the held-out accuracy (greedy, 512 problems) before and after, the points gained, and the seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

QUICKSTART = Path(__file__).parents[1] / "examples" / "quickstart"
sys.path.insert(0, str(QUICKSTART))

SETTINGS: dict[str, list[str]] = {
    "grpo": [],
    "dapo": ["algorithm.use=dapo", "run.max_steps=100"],
    "ppo": ["algorithm.use=ppo", "critic={use: fsdp, lr: 1e-3, warmup_steps: 5}", "run.max_steps=72"],
    "rloo": ["algorithm.use=rloo"],
    "reinforce-plus-plus": ["algorithm.use=reinforce-plus-plus"],
}
COMMON = ["run.save_every=null", "run.trackers=[jsonl]", "run.eval_every=40"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--algorithms", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--folder", type=Path, default=None, help="holds the warm start; made if it isn't there")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folder = arguments.folder or Path(tempfile.mkdtemp())
    manifest = warm_started(folder)
    print(f"{'algorithm':<22} seed  before  after  points  seconds", flush=True)
    for algorithm in arguments.algorithms:
        for seed in range(arguments.seeds):
            start = time.monotonic()
            before, after = run(manifest, algorithm, seed)
            seconds = time.monotonic() - start
            points = 100 * (after - before)
            print(f"{algorithm:<22} {seed:>4}  {before:6.1%} {after:6.1%}  {points:+6.1f}  {seconds:7.0f}", flush=True)


def warm_started(folder: Path) -> Path:
    """The quickstart's task and warm start in this folder; returns the manifest."""
    import task
    import warm_start

    manifest = folder / "grpo.yaml"
    if not (folder / "model").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(QUICKSTART / "grpo.yaml", manifest)
        task.write(folder, seed=0)
        warm_start.warm_start(manifest, folder / "model", seed=0)
    return manifest


def run(manifest: Path, algorithm: str, seed: int) -> tuple[float, float]:
    """Held-out accuracy before and after."""
    name = f"{algorithm}-{seed}"
    settings = [f"name={name}", f"run.seed={seed}", *COMMON, *SETTINGS[algorithm]]
    options = [part for setting in settings for part in ("--set", setting)]
    subprocess.run([sys.executable, "-m", "rlcore", "run", str(manifest), "--overwrite", *options], check=True)
    lines = (manifest.parent / "runs" / name / "metrics.jsonl").read_text().splitlines()
    seen = [row["eval/accuracy"] for row in map(json.loads, lines) if "eval/accuracy" in row]
    return seen[0], seen[-1]


if __name__ == "__main__":
    main()
