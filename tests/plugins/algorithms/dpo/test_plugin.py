"""The estimator: which rows become pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlcore import Batch
from rlcore.errors import BatchError
from rlcore.plugins.config import PluginRef
from rlcore.plugins.interfaces import AlgorithmContext
from rlcore.plugins.loading import build, config_class

CONTEXT = AlgorithmContext(samples_per_prompt=4, max_response_tokens=8, seed=0)
ESTIMATOR = build(PluginRef("algorithm", "dpo"), CONTEXT)


def batch_of(rewards, groups, units=None, masks=None, **token_columns):
    masks = [[0, 1]] * len(rewards) if masks is None else masks
    batch = Batch.from_sequences([range(len(mask)) for mask in masks])
    batch = batch.with_tokens(loss_mask=np.concatenate([np.float32(mask) for mask in masks]), **token_columns)
    return batch.with_samples(
        reward=np.float32(rewards),
        group=np.int64(groups),
        unit=np.arange(len(rewards)) if units is None else np.int64(units),
        row=np.arange(len(rewards)),
    )


def pairs_of(batch):
    """{chosen row: rejected row}"""
    out = ESTIMATOR(batch)
    sign = dict(zip(out["row"].tolist(), out.sum_rows(out["advantages"]).tolist(), strict=True))
    pairs = {}
    for unit in np.unique(out["unit"]).tolist():
        chosen, rejected = sorted(out["row"][out["unit"] == unit].tolist(), key=lambda row: -sign[row])
        assert sign[chosen] > 0 > sign[rejected]
        pairs[chosen] = rejected
    return pairs


def test_best_against_worst_of_each_group():
    batch = batch_of([0.2, 5, 0.9, -1, 0.5, 4, 0.1], [7, 3, 7, 3, 7, 3, 7])
    assert pairs_of(batch) == {2: 6, 1: 3}


def test_advantages_and_units():
    masks = [[0, 1, 1, 0, 1], [0, 1], [0, 0, 1]]
    out = ESTIMATOR(batch_of([0, 1, 2], [5, 5, 5], masks=masks))
    assert out["row"].tolist() == [0, 2]
    assert out["advantages"].tolist() == [0, -1, -1, 0, -1, 0, 0, 1]
    assert out["advantages"].dtype == np.float32
    assert len(set(out["unit"].tolist())) == 1


@pytest.mark.parametrize("rewards", [[0.1] * 4, [0.3, np.float32(0.1) + np.float32(0.2)], [1.0]])
def test_groups_without_spread_are_dropped(rewards):
    n = len(rewards)
    batch = batch_of([*rewards, 1, 0], [*[4] * n, 9, 9])
    assert pairs_of(batch) == {n: n + 1}
    alone = ESTIMATOR(batch_of(rewards, [4] * n))
    assert len(alone) == len(alone["advantages"]) == 0


def test_samples_without_a_live_token_are_no_part_of_a_pair():
    masks = [[0, 1], [0, 1], [0, 0], []]
    assert pairs_of(batch_of([0.5, 1, 2, -1], [0] * 4, masks=masks)) == {1: 0}
    assert pairs_of(batch_of([0.5, 0.5, 2, -1], [0] * 4, masks=masks)) == {}


def test_rewards_of_tokens_count():
    """KL in the reward: totals ½ and ¾."""
    batch = batch_of([1, 0.75], [0, 0], token_rewards=np.float32([0, -0.5, 0, 0]))
    assert pairs_of(batch) == {1: 0}


def test_pairs_that_the_data_brings_stay_as_they_are():
    """Offline: two pairs of one prompt, the better with reward 1; best and worst of the group would be one pair."""
    batch = batch_of([0, 1, 1, 0, 1, 0], [3, 3, 3, 3, 8, 8], units=[5, 5, 6, 6, 7, 7])
    assert pairs_of(batch) == {1: 0, 2: 3, 4: 5}
    out = ESTIMATOR(batch)
    assert out["unit"].tolist() == [5, 5, 6, 6, 7, 7]


def test_a_unit_over_two_groups_is_refused():
    with pytest.raises(BatchError, match="rows of a unit must be of one group"):
        pairs_of(batch_of([0, 1, 1, 0], [3, 4, 4, 4], units=[5, 5, 6, 6]))


def test_a_reward_that_is_no_number_names_its_row():
    with pytest.raises(BatchError, match=r"rewards must be finite numbers; rows 1 \(nan\)"):
        pairs_of(batch_of([0, np.nan], [0, 0]))


REWARDS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=16)


@given(REWARDS, st.randoms(use_true_random=False))
def test_order_of_rows_does_not_matter(rows, random):
    """Ties included: the sample's own id decides."""
    rewards, groups = map(np.array, zip(*rows, strict=True))
    batch = batch_of(rewards, groups)
    shuffled = batch.select(np.array(random.sample(range(len(rows)), len(rows))))
    assert pairs_of(shuffled) == pairs_of(batch)
    for chosen, rejected in pairs_of(batch).items():
        mine = rewards[groups == groups[chosen]]
        assert groups[chosen] == groups[rejected]
        assert (rewards[chosen], rewards[rejected]) == (mine.max(), mine.min())
    spread = {g for g in groups.tolist() if len(set(rewards[groups == g].tolist())) > 1}
    assert {int(groups[chosen]) for chosen in pairs_of(batch)} == spread


def test_config_says_what_it_needs_and_brings():
    config = config_class("algorithm", "dpo")()
    assert (config.needs(), config.provides()) == ({"groups"}, {"pairs"})
    assert config.defaults() == {"loss": "dpo", "aggregate": "seq-mean-token-mean"}
    assert config_class("loss", "dpo")().needs() == {"pairs", "batch:ref_logprobs"}
