"""Shards and micro-batches by their properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlcore.data.batch import Batch
from rlcore.data.sharding import micro_batches, shard, token_cost
from rlcore.errors import BatchError


def batch_of(lengths):
    return Batch.from_sequences([[1] * length for length in lengths])


rows = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 6)), max_size=40)


@given(rows, st.integers(1, 6))
def test_every_row_is_on_one_rank_and_units_stay_together(rows, ranks):
    units = np.asarray([unit for _, unit in rows], np.int64)
    batch = batch_of([length for length, _ in rows]).with_samples(unit=units)
    parts = shard(batch, ranks)
    assert len(parts) == ranks
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(rows)))
    homes = [{int(units[row]) for row in part} for part in parts]
    assert sum(len(home) for home in homes) == len(set(units.tolist()))
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(1, 6))
def test_load_is_within_the_bound_of_longest_first(lengths, ranks):
    # Graham 1969: the greatest load is at most 4/3 of the best, which is at least the mean and the greatest cost.
    costs = token_cost(np.asarray(lengths))
    loads = [costs[part].sum() for part in shard(batch_of(lengths), ranks)]
    # With as many jobs as ranks or fewer it is the greatest cost; beyond, two of the (ranks + 1) greatest share a rank.
    most = np.sort(costs)[::-1]
    least = max(costs.sum() / ranks, most[0], most[ranks - 1] + most[ranks] if len(costs) > ranks else 0)
    assert max(loads) <= 4 / 3 * least + 1e-9


def test_shards_are_balanced_by_cost_and_not_by_rows():
    assert [part.tolist() for part in shard(batch_of([10, 1, 1, 1, 1]), 2)] == [[0], [1, 2, 3, 4]]


def test_the_cost_can_be_given():
    # Every row costs the same: two rows on each rank, whatever their lengths.
    parts = shard(batch_of([100, 1, 1, 1]), 2, cost=lambda lengths: np.ones(len(lengths)))
    assert [len(part) for part in parts] == [2, 2]


def test_long_sequences_cost_more_than_their_tokens():
    # By hand: 24576 tokens of linear cost are doubled by attention; half as many pay half of it.
    assert token_cost(np.asarray([0, 12288, 24576])).tolist() == [0, 12288 * 1.5, 24576 * 2]


def test_fewer_rows_than_ranks_leaves_ranks_empty():
    assert [part.tolist() for part in shard(batch_of([3, 4]), 4)] == [[1], [0], [], []]
    assert [part.tolist() for part in shard(batch_of([]), 2)] == [[], []]


def test_no_ranks():
    with pytest.raises(BatchError, match="over 0 ranks"):
        shard(batch_of([1]), 0)


@given(st.lists(st.integers(0, 20), max_size=60), st.integers(20, 60))
def test_micro_batches_hold_every_row_once_within_the_budget(lengths, budget):
    packs = micro_batches(lengths, budget)
    assert sorted(row for pack in packs for row in pack.tolist()) == list(range(len(lengths)))
    loads = [sum(lengths[row] for row in pack) for pack in packs]
    assert all(load <= budget for load in loads)
    assert all(pack.dtype == np.int64 and len(pack) and (np.diff(pack) > 0).all() for pack in packs)
    # Two packs that would fit into one are never left apart.
    assert all(a + b > budget for i, a in enumerate(loads) for b in loads[:i])


def test_micro_batches_by_hand():
    # 6 opens a pack; 5 does not fit, opens another; 4 fits 6 exactly, 3 fits 5, 2 fits that exactly.
    assert [pack.tolist() for pack in micro_batches(np.asarray([2, 3, 4, 5, 6]), 10)] == [[2, 4], [0, 1, 3]]
    assert micro_batches([], 10) == []


def test_a_sequence_above_the_budget_is_refused():
    with pytest.raises(BatchError, match=r"row 1 has 11 tokens, more than trainer.tokens_per_micro_batch \(10\)"):
        micro_batches([1, 11, 10], 10)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=40), st.integers(0, 40))
def test_rows_of_a_unit_stay_together_in_a_micro_batch(rows, spare):
    lengths = np.array([length for length, _ in rows], np.int64)
    units = np.array([unit for _, unit in rows], np.int64)
    totals = np.bincount(units, lengths, minlength=1)
    budget = int(totals.max()) + spare
    parts = micro_batches(lengths, budget, units)
    assert sorted(np.concatenate([*parts, np.zeros(0, np.int64)]).tolist()) == list(range(len(rows)))
    assert all(lengths[part].sum() <= budget and (np.diff(part) > 0).all() for part in parts)
    homes = [set(units[part].tolist()) for part in parts]
    assert sum(map(len, homes)) == len(set(units.tolist()))


@given(st.lists(st.integers(0, 50), max_size=40))
def test_units_of_one_row_change_nothing(lengths):
    units = 100 - np.arange(len(lengths))  # ids in another order than the rows
    plain, given_units = micro_batches(lengths, 60), micro_batches(lengths, 60, units)
    assert [sum(lengths[i] for i in part) for part in plain] == [sum(lengths[i] for i in part) for part in given_units]


def test_a_unit_that_does_not_fit_is_named():
    with pytest.raises(BatchError, match=r"rows 1, 3 train together and have 11 tokens, more than .*\(10\): raise it"):
        micro_batches([4, 5, 1, 6], 10, np.array([0, 7, 0, 7]))
