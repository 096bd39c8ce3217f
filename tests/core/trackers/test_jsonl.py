import json
from collections.abc import Callable
from pathlib import Path

from rlcore.plugins.config import PluginRef
from rlcore.plugins.interfaces import TrackerContext
from rlcore.plugins.loading import build


def test_writes_the_metrics_file_of_the_run(tmp_path: Path, context: Callable[..., TrackerContext]) -> None:
    for step in (0, 1):  # the second object is that of a resumed run
        tracker = build(PluginRef("tracker", "jsonl"), context())
        tracker.log(step, {"reward/mean": 0.5, "policy/loss": float("nan")})
        tracker.close()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows == [{"step": step, "reward/mean": 0.5, "policy/loss": None} for step in (0, 1)]
