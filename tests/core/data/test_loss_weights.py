import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlcore.data.batch import Batch
from rlcore.data.loss_weights import loss_weights
from rlcore.errors import BatchError

MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")


def batch_of(masks, **columns):
    batch = Batch.from_sequences([np.arange(len(mask)) for mask in masks])
    flat = np.concatenate([np.asarray(mask, np.float32) for mask in masks])
    return batch.with_tokens(loss_mask=flat, **columns)


@pytest.mark.parametrize(
    ("aggregate", "value"),
    # verl 0.9.1 on the same mask, losses 0 … 15 and width 4; by hand: rows sum to 3, 9, 38, 12 over 3, 2, 4, 1 tokens.
    [
        ("token-mean", 62 / 10),
        ("seq-mean-token-sum", 62 / 4),
        ("seq-mean-token-mean", (1 + 4.5 + 9.5 + 12) / 4),
        ("seq-mean-token-sum-norm", 62 / 4 / 4),
    ],
)
def test_golden_values(aggregate, value):
    batch = batch_of([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]])
    weights = loss_weights(batch, aggregate, max_response_tokens=4)
    assert weights.dtype == np.float32
    assert (weights * np.arange(16)).sum() == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize(
    ("aggregate", "weights"),
    [
        ("token-mean", [0, 1 / 3, 1 / 3, 0, 0, 1 / 3]),
        ("seq-mean-token-mean", [0, 1 / 4, 1 / 4, 0, 0, 1 / 2]),
        ("seq-mean-token-sum", [0, 1 / 2, 1 / 2, 0, 0, 1 / 2]),
        ("seq-mean-token-sum-norm", [0, 1 / 20, 1 / 20, 0, 0, 1 / 20]),  # 10 is configured, 2 the longest here
    ],
)
def test_rows_without_live_tokens_count_for_nothing(aggregate, weights):
    batch = batch_of([[0, 1, 1], [0, 0], [1]])
    np.testing.assert_allclose(loss_weights(batch, aggregate, max_response_tokens=10), weights, rtol=1e-6)


@pytest.mark.parametrize("aggregate", MODES)
@pytest.mark.parametrize("masks", [[[0, 0], [0]], [[]], [[0], []]])
def test_nothing_live_gives_zeros(aggregate, masks):
    """Field case L04: 0, and no 0/0."""
    weights = loss_weights(batch_of(masks), aggregate, max_response_tokens=4)
    assert weights.dtype == np.float32
    assert (weights == 0).all()


@given(st.lists(st.lists(st.booleans(), max_size=6), min_size=1, max_size=8))
def test_weights_of_means_add_up_to_one(masks):
    batch = batch_of(masks)
    live = any(any(mask) for mask in masks)
    for aggregate in ("token-mean", "seq-mean-token-mean"):
        total = loss_weights(batch, aggregate, max_response_tokens=4).sum()
        assert total == pytest.approx(float(live), rel=1e-5)


def test_boolean_mask_will_do():
    batch = Batch.from_sequences([[1, 2]]).with_tokens(loss_mask=np.array([False, True]))
    assert loss_weights(batch, "token-mean", max_response_tokens=1).tolist() == [0, 1]


def test_bad_input():
    batch = batch_of([[1]])
    with pytest.raises(BatchError, match="unknown aggregate 'mean'; there are: token-mean, seq-mean-token-mean"):
        loss_weights(batch, "mean", max_response_tokens=1)
    with pytest.raises(BatchError, match="max_response_tokens must be at least 1, not 0"):
        loss_weights(batch, "token-mean", max_response_tokens=0)
    with pytest.raises(BatchError, match="no column 'loss_mask'"):
        loss_weights(Batch.from_sequences([[1]]), "token-mean", max_response_tokens=1)
