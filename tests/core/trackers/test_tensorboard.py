import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rlcore.plugins.config import PluginRef
from rlcore.plugins.interfaces import TrackerContext
from rlcore.plugins.loading import build

pytest.importorskip("tensorboard")


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Scalars by name as TensorBoard itself would show them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def test_values_come_back_from_the_event_file(tmp_path: Path, context: Callable[..., TrackerContext]) -> None:
    tracker = build(PluginRef("tracker", "tensorboard"), context())
    tracker.log(0, {"eval/accuracy": 0.25})
    tracker.log(1, {"reward/mean": 0.5, "policy/loss": math.nan})
    tracker.log(2, {"reward/mean": 0.75})
    tracker.close()
    scalars = read(tmp_path / "tensorboard")
    assert scalars["eval/accuracy"] == [(0, 0.25)]
    assert scalars["reward/mean"] == [(1, 0.5), (2, 0.75)]
    assert math.isnan(scalars["policy/loss"][0][1])


def test_a_resumed_run_appends_and_hides_steps_past_the_checkpoint(
    tmp_path: Path, context: Callable[..., TrackerContext]
) -> None:
    first = build(PluginRef("tracker", "tensorboard"), context())
    first.log(1, {"x": 1.0})
    saved = first.state()
    first.log(2, {"x": 2.0})  # past the checkpoint, then killed
    first.close()
    second = build(PluginRef("tracker", "tensorboard"), context(**saved))
    second.log(2, {"x": 20.0})
    second.log(3, {"x": 30.0})
    second.close()
    assert read(tmp_path / "tensorboard") == {"x": [(1, 1.0), (2, 20.0), (3, 30.0)]}


def test_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from rlcore.trackers.tensorboard import *; from pathlib import Path\n"
        "t = rlcore_tracker(Config(), TrackerContext('a', Path(sys.argv[1]), {}, {}, 1))\n"
        "t.log(1, {'x': 1.0}); t.close()\n"
        "assert not {'torch', 'tensorflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)
