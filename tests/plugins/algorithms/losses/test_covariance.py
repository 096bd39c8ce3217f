"""Which tokens clip-cov and kl-cov choose: of a whole update, by hand, and the same whatever the order or the seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlcore.data.batch import Batch
from rlcore.errors import BatchError
from rlcore.plugins.config import PluginRef
from rlcore.plugins.loading import build, config_of
from rlcore_losses.covariance import covariances, highest, in_band


def update(logprobs: Any, advantages: Any, mask: Any = None, lengths: Any = None) -> Batch:
    """Tokens of these columns; each sequence has tokens of its own."""
    count = len(logprobs)
    lengths = [count] if lengths is None else lengths
    sequences = np.split(np.arange(count, dtype=np.int32), np.cumsum(lengths)[:-1])
    return Batch.from_sequences(sequences).with_tokens(
        old_logprobs=np.array(logprobs, np.float32),
        advantages=np.array(advantages, np.float32),
        loss_mask=np.ones(count, np.float32) if mask is None else np.array(mask, np.float32),
    )


def test_covariance_by_hand() -> None:
    """Live: log π = −1, −3, −2 (mean −2) and A = 2, −1, −1 (mean 0). What is masked enters no mean."""
    batch = update([-1, 7, -3, -2, np.nan], [2, 9, -1, -1, np.inf], [1, 0, 1, 1, 0], [2, 3])
    assert covariances(batch) == pytest.approx([2, np.nan, 1, 0, np.nan], nan_ok=True)


def test_kl_cov_takes_the_highest() -> None:
    # Means −2 and 0: covariances 1 · 4, 1 · 1, −1 · −2, −1 · −3
    batch = update([-1, -1, -3, -3], [4, 1, -2, -3])
    assert highest(batch, fraction=0.25).tolist() == [True, False, False, False]
    assert highest(batch, fraction=0.5).tolist() == [True, False, False, True]
    assert highest(batch, fraction=0.75).tolist() == [True, False, True, True]
    assert highest(batch, fraction=1).all()


def test_clip_cov_draws_from_the_band_only() -> None:
    """Covariances 4, 1, 2, 3: strictly between 1 and 4 are the last two."""
    batch = update([-1, -1, -3, -3], [4, 1, -2, -3])
    band = {"low": 1.0, "high": 4.0}
    assert in_band(batch, fraction=1, **band).tolist() == [False, False, True, True]
    assert in_band(batch, fraction=0.25, **band).tolist() in ([False, False, True, False], [False, False, False, True])
    assert not in_band(batch, fraction=1, low=5, high=9).any()


@pytest.mark.parametrize(("tokens", "fraction", "count"), [(35_000, 2e-4, 7), (34_999, 2e-4, 6), (10, 2e-4, 1)])
def test_a_fraction_of_live_tokens_is_rounded_down_but_not_to_none(tokens: int, fraction: float, count: int) -> None:
    rng = np.random.default_rng(0)
    mask = np.repeat([1, 0], [tokens, 50])
    batch = update(rng.normal(size=tokens + 50), rng.normal(size=tokens + 50), mask)
    assert highest(batch, fraction=fraction).sum() == count
    chosen = in_band(batch, fraction=fraction, low=-100, high=100)
    assert chosen.sum() == count
    assert not chosen[tokens:].any()


def test_the_draw_is_uniform_over_places_and_sequences() -> None:
    """1,000 updates of 20 candidates, one drawn: each place about 50 times (standard deviation 7)."""
    counts = np.zeros(20)
    rng = np.random.default_rng(3)
    for _ in range(1000):
        batch = update(np.tile([-1, -3], 10), np.tile([2, -2], 10), lengths=[7, 13])
        batch = Batch(
            rng.integers(1000, size=20, dtype=np.int32), batch.offsets, batch.token_columns, batch.sample_columns
        )
        counts += in_band(batch, fraction=0.05, low=1, high=5)
    assert counts.sum() == 1000
    assert counts.min() > 20
    assert counts.max() < 80


def test_equal_covariances_are_no_matter_of_place() -> None:
    """All tokens are as high as each other; a sort alone would take the first."""
    batch = update([-1] * 40, [1] * 40)
    chosen = np.flatnonzero(highest(batch, fraction=0.25))
    assert len(chosen) == 10
    assert chosen.max() > 9


@pytest.mark.parametrize("name", ["clip-cov", "kl-cov"])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_the_choice_depends_on_neither_order_nor_random_state(name: str, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=6))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    count = sum(lengths)
    batch = update(rng.normal(size=count), 3 * rng.normal(size=count), rng.random(count) < 0.8, lengths)
    prepare = build(PluginRef("loss", name, {"fraction": data.draw(st.floats(0.01, 1))})).prepare
    order = np.array(data.draw(st.permutations(range(len(lengths)))), np.int64)
    state = np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
    whole = prepare(batch)
    np.testing.assert_array_equal(prepare(batch.select(order))["cov_selected"], whole.select(order)["cov_selected"])
    assert np.random.get_state()[1].tolist() == state  # type: ignore[index, union-attr]
    assert whole["cov_selected"].dtype == np.float32
    assert not whole["cov_selected"][batch["loss_mask"] == 0].any()


@pytest.mark.parametrize("name", ["clip-cov", "kl-cov"])
def test_nothing_to_choose_from(name: str) -> None:
    prepare = build(PluginRef("loss", name)).prepare
    masked = prepare(update([np.nan, np.nan], [np.inf, 0], [0, 0]))
    assert masked["cov_selected"].tolist() == [0, 0]
    assert len(prepare(update([], [], lengths=[]).select(np.zeros(0, np.int64)))["cov_selected"]) == 0


@pytest.mark.parametrize("column", ["old_logprobs", "advantages"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_none_name_their_rows(column: str, bad: float) -> None:
    batch = update([-1.0] * 4, [1.0] * 4, lengths=[1, 2, 1])
    batch = batch.with_tokens(**{column: np.array([-1, bad, -1, bad], np.float32)})
    with pytest.raises(BatchError, match=f"{column} must be finite numbers; rows 1, 2 of the update have others"):
        build(PluginRef("loss", "kl-cov")).prepare(batch)


@pytest.mark.parametrize("name", ["clip-cov", "kl-cov"])
def test_what_they_need_and_bring(name: str) -> None:
    config = config_of(PluginRef("loss", name))
    assert config.needs() - config.provides() == {"batch:old_logprobs"}
    assert config.provides() == {"batch:cov_selected"}
