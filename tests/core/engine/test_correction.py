"""Importance weights between engine and trainer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlcore.data.batch import Batch
from rlcore.engine.correction import correct, mismatch_metrics
from rlcore.manifest.schema import RolloutCorrectionSection

LOG_RATIOS = [[0.1, 1.2, -0.5], [0.0, -2.0]]


def batch_of(log_ratios: list[list[float]], masks: list[list[int]] | None = None) -> Batch:
    flat = np.float32([x for row in log_ratios for x in row])
    masks = [[1] * len(row) for row in log_ratios] if masks is None else masks
    return Batch.from_sequences([range(len(row)) for row in log_ratios]).with_tokens(
        loss_mask=np.float32([live for mask in masks for live in mask]),
        old_logprobs=flat,
        rollout_logprobs=np.zeros(len(flat), np.float32),
    )


def corrected(batch: Batch, **settings: Any) -> tuple[list[float], list[float], float]:
    """Weights, the mask that is left, and the fraction of tokens that was touched."""
    batch, metrics = correct(batch, RolloutCorrectionSection(**settings))
    return batch["correction"].tolist(), batch["loss_mask"].tolist(), metrics["rollout/corrected_fraction"]


@pytest.mark.parametrize(
    ("settings", "weights", "mask", "fraction"),
    # verl 0.9.1. By hand: exp of .1, 1.2 (3.32), −.5, 0 and −2; of the sums .8 (2.226) and −2.
    [
        ({}, [1.10517, 2, 0.60653, 1, 0.13534], [1, 1, 1, 1, 1], 1 / 5),
        ({"level": "sequence"}, [2, 2, 2, 0.13534, 0.13534], [1, 1, 1, 1, 1], 3 / 5),
        ({"mode": "mask", "floor": 0.5}, [1.10517, 0, 0.60653, 1, 0], [1, 0, 1, 1, 0], 2 / 5),
        ({"mode": "mask", "floor": 0.5, "level": "sequence"}, [0] * 5, [0] * 5, 1),
        ({"mode": "mask", "cap": 2.3, "level": "sequence"}, [2.22554] * 3 + [0.13534] * 2, [1] * 5, 0),
        ({"cap": 1.0}, [1, 1, 0.60653, 1, 0.13534], [1, 1, 1, 1, 1], 2 / 5),
    ],
)
def test_golden_values(settings: dict[str, Any], weights: list[float], mask: list[float], fraction: float) -> None:
    got, left, touched = corrected(batch_of(LOG_RATIOS), **settings)
    np.testing.assert_allclose(got, weights, atol=5e-6)
    assert left == mask
    assert touched == pytest.approx(fraction)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("rubbish", [5.0, np.nan, -np.inf])
def test_masked_tokens_do_not_count(level: str, rubbish: float) -> None:
    """A tool's tokens are no part of a sample's weight, whatever they hold."""
    gap = corrected(batch_of([[rubbish, 0.1, rubbish, 0.2]], [[0, 1, 0, 1]]), level=level)
    none = corrected(batch_of([[0.1, 0.2]]), level=level)
    assert gap[0] == [0, none[0][0], 0, none[0][1]]
    assert gap[1:] == ([0, 1, 0, 1], none[2])


@pytest.mark.parametrize("far", [-100.0, 100.0, -1000.0, 1000.0])
def test_far_apart_is_finite(far: float) -> None:
    batch = batch_of([[far, 0.0]])
    for level in ("token", "sequence"):
        weights, _, _ = corrected(batch, level=level)
        assert weights[0] == (2 if far > 0 else pytest.approx(0, abs=1e-8))
    assert np.isfinite(list(mismatch_metrics(batch).values())).all()


def test_without_a_live_token() -> None:
    batch = batch_of([[1.0, 2.0]], [[0, 0]])
    assert corrected(batch) == ([0, 0], [0, 0], 0)
    assert mismatch_metrics(batch) == {}


def test_mismatch_by_hand() -> None:
    """ρ = 1, 2, 4 and ½: Σρ = 7½, Σρ² = 21¼; (Σρ)² / (4 Σρ²) = 56¼ / 85. k3 is ρ − 1 − log ρ."""
    metrics = mismatch_metrics(batch_of([[0, np.log(2)], [np.log(4), 9], [-np.log(2)]], [[1, 1], [1, 0], [1]]))
    assert metrics == {
        "rollout/logprob_difference_mean": pytest.approx(np.log(16) / 4, rel=1e-6),
        "rollout/logprob_difference_max": pytest.approx(np.log(4), rel=1e-6),
        "rollout/kl": pytest.approx((0 + 1 + 3 - 0.5 - np.log(4)) / 4, rel=1e-6),
        "rollout/effective_sample_size": pytest.approx(56.25 / 85, rel=1e-6),
    }


def test_equal_log_probs_change_nothing() -> None:
    batch = batch_of([[0.0, 0.0], [0.0]])
    assert corrected(batch, mode="mask", floor=0.9) == ([1, 1, 1], [1, 1, 1], 0)
    assert mismatch_metrics(batch)["rollout/effective_sample_size"] == 1


@given(st.lists(st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=5), min_size=1, max_size=5), st.data())
def test_rows_do_not_see_each_other(rows: list[list[float]], data: st.DataObject) -> None:
    settings = RolloutCorrectionSection(
        level=data.draw(st.sampled_from(["token", "sequence"])),
        mode=data.draw(st.sampled_from(["truncate", "mask"])),
        floor=0.5,
    )
    together, _ = correct(batch_of(rows), settings)
    alone = [correct(batch_of([row]), settings)[0] for row in rows]
    for name in ("correction", "loss_mask"):
        np.testing.assert_allclose(together[name], np.concatenate([one[name] for one in alone]), rtol=1e-6)
    assert (together["correction"] <= settings.cap).all()
