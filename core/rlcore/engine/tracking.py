"""Tells the trackers what happens, and keeps the time of each phase."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from rlcore.plugins.config import PluginRef
from rlcore.plugins.interfaces import Metrics, Tracker, TrackerContext
from rlcore.plugins.loading import build


class Tracking:
    """All trackers of a run as one. A tracker that raises is reported once, closed, and left out from then on."""

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._trackers = dict(trackers)
        self._seconds: dict[str, float] = {}
        self._phase = ""

    @classmethod
    def start(cls, refs: Sequence[PluginRef], context: TrackerContext, states: Mapping[str, Any]) -> Tracking:
        """Build each tracker with the state that it saved in the checkpoint."""
        trackers: dict[str, Tracker] = {}
        for ref in refs:
            own = TrackerContext(
                context.run_name, context.folder, context.manifest, states.get(ref.name, {}), context.total_steps
            )
            trackers[ref.name] = build(ref, own)
        return cls(trackers)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what happens inside as ``time/NAME_seconds``; phases don't nest."""
        self._phase = name
        self._tell(lambda tracker: tracker.phase(name))
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def progress(self, done: int, total: int) -> None:
        """The phase has got so far."""
        self._tell(lambda tracker: tracker.phase(self._phase, done, total))

    def take_times(self) -> dict[str, float]:
        """Seconds of each phase since the last call, by metric name."""
        times = {f"time/{name}_seconds": seconds for name, seconds in self._seconds.items()}
        self._seconds.clear()
        return times

    def log(self, step: int, metrics: Metrics) -> None:
        """Record the metrics of a step."""
        self._tell(lambda tracker: tracker.log(step, metrics))

    def message(self, level: Literal["info", "warning"], text: str) -> None:
        """Say something to whoever watches."""
        self._tell(lambda tracker: tracker.message(level, text))

    def state(self) -> dict[str, Any]:
        """What each tracker wants kept in a checkpoint."""
        states: dict[str, Any] = {}
        self._tell_named(lambda name, tracker: states.__setitem__(name, dict(tracker.state())))
        return states

    def close(self) -> None:
        """Flush and release every tracker."""
        self._tell(lambda tracker: tracker.close())

    def _tell(self, act: Any) -> None:
        self._tell_named(lambda _, tracker: act(tracker))

    def _tell_named(self, act: Any) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                act(name, tracker)
            except Exception as error:  # noqa: BLE001 - a tracker's failure must not cost the run
                del self._trackers[name]
                self.message("warning", f"tracker {name!r} failed and is switched off: {type(error).__name__}: {error}")
