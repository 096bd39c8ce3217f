"""What an estimator may not do in silence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rlcore.data.batch import Batch
from rlcore.engine.estimate import estimate
from rlcore.errors import BatchError, BrokenPluginError, PluginError
from rlcore.plugins.config import PluginRef

REF = PluginRef("algorithm", "mine")


def batch() -> Batch:
    return (
        Batch.from_sequences([[1, 2], [3, 4, 5]])
        .with_tokens(loss_mask=np.array([0, 1, 0, 1, 1], np.float32))
        .with_samples(reward=np.array([0.5, 2.0], np.float32))
    )


def advantages(*values: float) -> Any:
    return lambda batch: batch.with_tokens(advantages=np.array(values, np.float32))


def test_what_it_returns_is_passed_on() -> None:
    assert estimate(batch(), advantages(0, 1, 0, 2, 3), REF)["advantages"].tolist() == [0, 1, 0, 2, 3]


def test_masked_tokens_may_hold_anything() -> None:
    estimate(batch(), advantages(np.nan, 1, np.inf, 2, 3), REF)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_advantages_that_are_not_finite_name_the_plugin_and_the_rows(bad: float) -> None:
    with pytest.raises(
        BrokenPluginError, match=r"algorithm/mine gave advantages that are not finite to 1 of 2 samples"
    ):
        estimate(batch(), advantages(0, 1, 0, bad, 3), REF)


def test_an_error_names_the_plugin_and_its_line() -> None:
    def broken(batch: Batch) -> Batch:
        raise ValueError("boom")

    with pytest.raises(
        PluginError, match=r"algorithm/mine failed with ValueError: boom \(at .*test_estimate\.py:\d+\)"
    ):
        estimate(batch(), broken, REF)


def test_errors_of_the_library_point_at_the_plugins_line() -> None:
    def broken(batch: Batch) -> Batch:
        np.concatenate([])  # raises inside numpy
        return batch

    with pytest.raises(PluginError, match=r"test_estimate\.py"):
        estimate(batch(), broken, REF)


def test_rlcores_own_errors_come_through() -> None:
    with pytest.raises(BatchError, match="no column 'values'"):
        estimate(batch(), lambda batch: batch.with_tokens(advantages=batch["values"]), REF)


@pytest.mark.parametrize("result", [None, np.zeros(5)])
def test_no_batch_is_refused(result: Any) -> None:
    with pytest.raises(BrokenPluginError, match="algorithm/mine must return a Batch"):
        estimate(batch(), lambda batch: result, REF)


def test_no_advantages_are_refused() -> None:
    with pytest.raises(BrokenPluginError, match="without the token column 'advantages'"):
        estimate(batch(), lambda batch: batch, REF)
