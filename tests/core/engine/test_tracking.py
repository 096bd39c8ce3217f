"""Trackers as one: times, and what happens when one fails."""

from __future__ import annotations

from typing import Any

from rlcore.engine.tracking import Tracking
from rlcore.plugins.interfaces import Tracker


class Notes(Tracker):
    def __init__(self) -> None:
        self.notes: list[Any] = []

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        self.notes.append((name, done, total))

    def log(self, step: int, metrics: Any) -> None:
        self.notes.append((step, dict(metrics)))

    def message(self, level: str, text: str) -> None:
        self.notes.append((level, text))

    def state(self) -> dict[str, Any]:
        return {"id": "abc"}


class Broken(Tracker):
    def log(self, step: int, metrics: Any) -> None:
        raise OSError("the network is down")


def test_phases_are_told_and_timed() -> None:
    notes = Notes()
    tracking = Tracking({"notes": notes})
    with tracking.phase("generate"):
        tracking.progress(1, 2)
    with tracking.phase("generate"):
        pass
    assert notes.notes == [("generate", 0, 0), ("generate", 1, 2), ("generate", 0, 0)]
    times = tracking.take_times()
    assert list(times) == ["time/generate_seconds"]
    assert times["time/generate_seconds"] > 0
    assert tracking.take_times() == {}


def test_a_tracker_that_fails_is_reported_once_and_left_out() -> None:
    notes = Notes()
    tracking = Tracking({"broken": Broken(), "notes": notes})
    tracking.log(1, {"a": 1.0})
    tracking.log(2, {"a": 2.0})
    assert notes.notes == [
        ("warning", "tracker 'broken' failed and is switched off: OSError: the network is down"),
        (1, {"a": 1.0}),
        (2, {"a": 2.0}),
    ]
    assert tracking.state() == {"notes": {"id": "abc"}}
