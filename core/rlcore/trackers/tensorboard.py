"""Tracker ``tensorboard``: event files in the run's folder, written without torch or TensorFlow."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rlcore import PluginConfig, Tracker, TrackerContext, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlcore.plugins.interfaces import Metrics


class Config(PluginConfig):
    """Write metrics for TensorBoard: ``tensorboard --logdir RUN/tensorboard``."""

    flush_seconds: int = 30
    """Longest time until a metric is in the file."""


@hookimpl
def rlcore_tracker(config: Config, context: TrackerContext) -> Tracker:
    """The tracker, writing into ``tensorboard`` in the run's folder."""
    return TensorboardTracker(config, context)


class TensorboardTracker(Tracker):
    """Scalars under the metrics' own names. A resumed run adds a file that hides the steps which it repeats."""

    def __init__(self, config: Config, context: TrackerContext) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(context.folder / "tensorboard"), flush_secs=config.flush_seconds)
        self._step = int(context.state.get("step", -1))
        if self._step >= 0:
            # TensorBoard drops what earlier files hold from the step of a START on.
            restart = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=time.time(), step=self._step + 1, session_log=restart))

    def log(self, step: int, metrics: Metrics) -> None:
        """One event for the step, with a value for every metric."""
        values = [self._summary.Value(tag=name, simple_value=float(value)) for name, value in metrics.items()]
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))
        self._step = step

    def state(self) -> Mapping[str, Any]:
        """The last step written."""
        return {"step": self._step}

    def close(self) -> None:
        """Write out what is still in the queue."""
        self._writer.close()
