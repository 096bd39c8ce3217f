import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlcore.data.batch import Batch
from rlcore.data.returns import discounted_sums, rewards_of_tokens, whiten
from rlcore.errors import BatchError

MASKS = st.lists(st.lists(st.integers(0, 1), max_size=6), max_size=8)


def batch_of(masks):
    batch = Batch.from_sequences([range(len(mask)) for mask in masks])
    return batch.with_tokens(loss_mask=np.array([live for mask in masks for live in mask], np.float32))


def test_discounted_sums_by_hand() -> None:
    batch = batch_of([[0, 1, 0, 1], [], [1, 1, 1], [0]])
    values = np.array([9, 1, np.nan, 2, 1, 2, 4, 9])
    # Row 0: 2, then 1 + 2/2; row 2: 4, 2 + 4/2, 1 + 4/2.
    assert discounted_sums(batch, values, 0.5).tolist() == [0, 2, 0, 2, 3, 4, 4, 0]


@given(MASKS, st.sampled_from([0.0, 0.5, 0.95, 1.0]), st.integers(0, 99))
def test_discounted_sums_are_those_of_a_loop(masks, discount, seed) -> None:
    batch = batch_of(masks)
    values = np.random.default_rng(seed).normal(size=len(batch.tokens))
    expected, at = [0.0] * len(values), len(values) - 1
    for mask in reversed(masks):
        carried = 0.0
        for live in reversed(mask):
            if live:
                expected[at] = carried = values[at] + discount * carried
            at -= 1
    np.testing.assert_allclose(discounted_sums(batch, values, discount), expected, rtol=1e-12)


def test_rows_do_not_leak_into_each_other() -> None:
    batch = batch_of([[1], [1, 1], [1]])
    assert discounted_sums(batch, np.array([1e20, 1, 2, 1e20]), 1.0).tolist() == [1e20, 3, 2, 1e20]


def test_the_reward_of_a_sample_is_given_at_its_last_live_token() -> None:
    batch = batch_of([[1, 1, 0], [0, 0], [], [1]]).with_samples(reward=np.float32([3, 5, 7, 9]))
    assert rewards_of_tokens(batch).tolist() == [0, 3, 0, 0, 0, 9]
    shaped = batch.with_tokens(token_rewards=np.float32([-1, -2, np.nan, 8, 8, 1]))
    assert rewards_of_tokens(shaped).tolist() == [-1, 1, 0, 0, 0, 10]


def test_rewards_that_are_no_numbers_name_their_rows() -> None:
    batch = batch_of([[1], [1]]).with_samples(reward=np.float32([0, np.nan]))
    with pytest.raises(BatchError, match=r"rewards must be finite numbers; rows 1 \(nan\) of"):
        rewards_of_tokens(batch)
    batch = batch.with_samples(reward=np.float32([0, 0])).with_tokens(token_rewards=np.float32([np.inf, 0]))
    with pytest.raises(BatchError, match=r"sums of token_rewards must be finite numbers; rows 0 \(inf\) of"):
        rewards_of_tokens(batch)


def test_whiten_by_hand() -> None:
    """Live: 1, 2, 6; mean 3, variance (4 + 1 + 9) / 2 = 7."""
    batch = batch_of([[1, 0, 1], [0, 1]])
    got = whiten(batch, np.array([1, np.nan, 2, 50, 6]))
    np.testing.assert_allclose(got, np.array([-2, 0, -1, 0, 3]) / np.sqrt(7), rtol=1e-8)
    assert got[[1, 3]].tolist() == [0, 0]


@pytest.mark.parametrize("values", [[], [4.0], [0.0] * 3, [0.1] * 7, [1e6] * 4])
def test_nothing_is_whitened_to_zero_without_spread(values) -> None:
    batch = batch_of([[1]] * len(values))
    assert not whiten(batch, np.float32(values)).any()


def test_8192_long_rows_take_a_second_at_most() -> None:
    lengths = np.random.default_rng(0).integers(1, 2048, 8192)
    batch = Batch.from_sequences([np.zeros(n, np.int32) for n in lengths])
    batch = batch.with_tokens(loss_mask=np.ones(len(batch.tokens), np.float32))
    start = time.process_time()
    discounted_sums(batch, batch["loss_mask"], 0.99)
    assert time.process_time() - start < 3
