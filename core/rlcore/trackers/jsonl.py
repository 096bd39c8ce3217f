"""Tracker ``jsonl``: the run's ``metrics.jsonl``, one line a step, and its ``messages.jsonl``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rlcore import PluginConfig, Tracker, TrackerContext, hookimpl

if TYPE_CHECKING:
    from rlcore.plugins.interfaces import Metrics


class Config(PluginConfig):
    """Write metrics to ``metrics.jsonl`` and messages to ``messages.jsonl`` in the run's folder."""


@hookimpl
def rlcore_tracker(config: Config, context: TrackerContext) -> Tracker:
    """The tracker for this run's folder."""
    from rlcore.run.messages import MESSAGES_FILE, append_message
    from rlcore.run.metrics import METRICS_FILE, MetricsFile

    class JsonlTracker(Tracker):
        def __init__(self) -> None:
            self._file = MetricsFile(context.folder / METRICS_FILE)

        def log(self, step: int, metrics: Metrics) -> None:
            self._file.append(step, metrics)

        def message(self, level: Literal["info", "warning"], text: str) -> None:
            append_message(context.folder / MESSAGES_FILE, level, text)

    return JsonlTracker()
