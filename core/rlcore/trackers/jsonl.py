"""Tracker ``jsonl``: the run's ``metrics.jsonl``, one line a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlcore import PluginConfig, Tracker, TrackerContext, hookimpl

if TYPE_CHECKING:
    from rlcore.plugins.interfaces import Metrics


class Config(PluginConfig):
    """Write metrics to ``metrics.jsonl`` in the run's folder, one JSON object per step."""


@hookimpl
def rlcore_tracker(config: Config, context: TrackerContext) -> Tracker:
    """The tracker for this run's folder."""
    from rlcore.run.metrics import METRICS_FILE, MetricsFile

    class JsonlTracker(Tracker):
        def __init__(self) -> None:
            self._file = MetricsFile(context.folder / METRICS_FILE)

        def log(self, step: int, metrics: Metrics) -> None:
            self._file.append(step, metrics)

    return JsonlTracker()
