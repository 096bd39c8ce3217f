"""Metrics of a step."""

from __future__ import annotations

from rlcore.engine.stats import mean_metrics


def test_updates_without_live_tokens_leave_the_metrics_of_the_others() -> None:
    """Such an update has a gradient norm and no loss; which one it is must not matter."""
    full, other, empty = {"loss": 1.0, "norm": 2.0}, {"loss": 3.0, "norm": 4.0}, {"norm": 0.0}
    for updates in ([full, other, empty], [empty, full, other]):
        assert mean_metrics(updates) == {"loss": 2.0, "norm": 2.0}
    assert mean_metrics([]) == {}
