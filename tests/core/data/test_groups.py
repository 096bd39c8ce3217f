import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlcore.data.batch import Batch
from rlcore.data.groups import deviations, finite, group_sizes, group_sums, total_rewards, with_advantages
from rlcore.errors import BatchError

ROWS = st.lists(st.tuples(st.integers(-8, 8).map(lambda n: n / 8), st.integers(-3, 3)), max_size=20)


@given(ROWS)
def test_statistics_are_those_of_a_loop(rows) -> None:
    rewards, groups = np.array([r for r, _ in rows], float), np.array([g for _, g in rows], int)
    centred, std = deviations(rewards, groups)
    for i, group in enumerate(groups):
        own = rewards[groups == group]
        assert group_sizes(groups)[i] == len(own)
        assert group_sums(rewards, groups)[i] == own.sum()
        assert centred[i] == pytest.approx(rewards[i] - own.mean(), abs=1e-12)
        assert std[i] == pytest.approx(own.std(ddof=1) if len(own) > 1 else 0, abs=1e-12)


@pytest.mark.parametrize("rewards", [[0.1] * 7, [0.95], [1e6] * 3, [0.3, np.float32(0.1) + np.float32(0.2)]])
def test_without_spread_both_are_exactly_zero(rewards) -> None:
    centred, std = deviations(np.float32(rewards), np.zeros(len(rewards), int))
    assert not centred.any()
    assert not std.any()


def test_totals_count_live_tokens_only() -> None:
    batch = Batch.from_sequences([[1, 2], [3]]).with_samples(reward=np.float32([1, 2]))
    batch = batch.with_tokens(loss_mask=np.float32([1, 0, 0]))
    assert total_rewards(batch).tolist() == [1, 2]
    assert total_rewards(batch.with_tokens(token_rewards=np.float32([0.5, np.nan, np.inf]))).tolist() == [1.5, 2]


def test_finite_names_what_and_where() -> None:
    with pytest.raises(BatchError, match=r"^scores must be finite numbers; rows 1 \(nan\), 2 \(-inf\) of the batch"):
        finite(np.array([0, np.nan, -np.inf]), "scores")


def test_masked_tokens_have_no_advantage() -> None:
    batch = Batch.from_sequences([[1, 2], [3]]).with_tokens(loss_mask=np.float32([0, 1, 1]))
    got = with_advantages(batch, np.array([np.nan, 5.0, 6.0]))["advantages"]
    assert got.tolist() == [0, 5, 6]
    assert got.dtype == np.float32
