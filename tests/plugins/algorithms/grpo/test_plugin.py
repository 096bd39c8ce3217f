import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlcore import Batch
from rlcore.errors import BatchError, PluginError
from rlcore.plugins.config import PluginRef
from rlcore.plugins.interfaces import AlgorithmContext
from rlcore.plugins.loading import build, config_class
from rlcore_grpo.advantages import group_advantages

CONTEXT = AlgorithmContext(samples_per_prompt=4, max_response_tokens=8, seed=0)


def batch_of(rewards, groups, masks=None, **token_columns):
    masks = [[1]] * len(rewards) if masks is None else masks
    batch = Batch.from_sequences([range(len(mask)) for mask in masks])
    batch = batch.with_tokens(loss_mask=np.concatenate([np.float32(mask) for mask in masks]), **token_columns)
    return batch.with_samples(reward=np.float32(rewards), group=np.int64(groups))


def advantages(batch, **options):
    """The estimator's advantages, float32[T]."""
    return build(PluginRef("algorithm", "grpo", options), CONTEXT)(batch)["advantages"]


OPTIONS = [
    {"normalize": normalize, "variant": variant}
    for normalize in ("group", "batch", "none")
    for variant in ("mean", "pass-at-k")
]
VERL_MASKS = [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]


@pytest.mark.parametrize(
    ("options", "rows"),
    # verl 0.9.1 on the same input. By hand: means .5 and .75, standard deviations .70711 and .35355, plus 1e-6.
    [
        ({}, [0.70711, -0.70711, -0.70710, 0.70710]),
        ({"normalize": "none"}, [0.5, -0.5, -0.25, 0.25]),
        # All four rewards: mean .625, standard deviation .47871.
        ({"normalize": "batch"}, np.array([0.5, -0.5, -0.25, 0.25]) / 0.4787146),
        ({"variant": "pass-at-k"}, [1.41421, 0, 0, 1.41421]),
        ({"variant": "pass-at-k", "normalize": "none"}, [1, 0, 0, 0.5]),
        ({"variant": "pass-at-k", "normalize": "batch"}, np.array([1, 0, 0, 0.5]) / 0.4787146),
    ],
)
def test_golden_values(options, rows):
    got = advantages(batch_of([1, 0, 0.5, 1], [7, 7, 3, 3], VERL_MASKS), **options)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got.reshape(4, 4), np.array(rows)[:, None] * np.array(VERL_MASKS), atol=5e-6)


def test_reward_of_a_row_includes_its_token_rewards():
    """Totals are .5, 0, 0 and .25."""
    batch = batch_of(
        [1, 0, 0, 0], [0, 0, 1, 1], [[1, 1], [1], [1], [1]], token_rewards=np.float32([-0.25, -0.25, 0, 0, 0.25])
    )
    assert advantages(batch, normalize="none").tolist() == [0.25, 0.25, -0.25, -0.125, 0.125]


def test_what_is_under_the_mask_may_be_anything():
    masks = [[0, 1], [1, 0], [0, 0]]
    batch = batch_of([1, 0, 0], [0, 0, 0], masks, token_rewards=np.float32([np.nan, 0, 0, np.inf, np.nan, np.nan]))
    assert advantages(batch, normalize="none").tolist() == np.float32([0, 2 / 3, -1 / 3, 0, 0, 0]).tolist()
    none_live = batch.with_tokens(loss_mask=np.zeros(6, np.float32))
    assert advantages(none_live).tolist() == [0] * 6


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    "rewards",
    [
        [0.1] * 7,
        [0.0] * 5,
        [-3.7] * 3,
        [1e6] * 4,
        [0.3, np.float32(0.1) + np.float32(0.2)],  # one step of float32 apart: a sum's residue, not a spread
        [0.95],
    ],
)
def test_group_without_spread_gets_exactly_zero(rewards, options):
    """Field case A01: 0, not residue divided by a tiny epsilon; one sample is no group either."""
    assert (advantages(batch_of(rewards, [5] * len(rewards)), **options) == 0).all()
    # Nor does it when another group brings spread into the batch.
    beside = advantages(batch_of([*rewards, 0.0, 1.0], [5] * len(rewards) + [6, 6]), **options)
    assert (beside[:-2] == 0).all()
    assert beside[-1] > 0


def test_one_odd_reward_of_eight_keeps_its_magnitude():
    """Field case A02's rewards: [.95]*7 + [0] have mean .83125 and std .33588."""
    got = advantages(batch_of([0.95] * 7 + [0.0], [0] * 8))
    np.testing.assert_allclose(got, [0.35355] * 7 + [-2.47487], atol=2e-5)


def test_small_spread_is_a_spread():
    got = advantages(batch_of([1.0, 1.001], [0, 0]))
    np.testing.assert_allclose(got, [-0.7071, 0.7071], atol=2e-3)  # float32 holds the difference to 1e-4 of itself


def test_groups_are_found_by_id_and_may_be_uneven():
    """Field cases A05 and A07: sizes 4, 3, 4, interleaved; the middle group all 5.0."""
    rewards = {1: [1, 0, 0, 1], 2: [5, 5, 5], 3: [10, 12, 14, 16]}
    order = [1, 3, 2, 1, 1, 3, 2, 3, 1, 2, 3]
    left = {group: iter(values) for group, values in rewards.items()}
    got = advantages(batch_of([next(left[group]) for group in order], order))
    by_group = {group: got[np.array(order) == group] for group in rewards}
    half = 0.5 / (np.sqrt(1 / 3) + 1e-6)
    np.testing.assert_allclose(by_group[1], [half, -half, -half, half], rtol=1e-6)
    assert by_group[2].tolist() == [0, 0, 0]
    np.testing.assert_allclose(by_group[3], np.array([-3, -1, 1, 3]) / (np.sqrt(20 / 3) + 1e-6), rtol=1e-6)


def test_a_group_does_not_see_the_others():
    alone = advantages(batch_of([1, 0, 0], [0, 0, 0]))
    together = advantages(batch_of([1, 0, 0, 1e6, -1e6], [0, 0, 0, 1, 1]))
    np.testing.assert_allclose(together[:3], alone, rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_reward_that_is_no_number_names_its_rows(value):
    """Field case R07."""
    with pytest.raises(BatchError, match=rf"rewards must be finite numbers; rows 1 \({value}\), 3 \({value}\) of"):
        advantages(batch_of([1, value, 0, value], [0, 0, 1, 1]))
    with pytest.raises(BatchError, match=rf"rows 0 .*, 4 \({value}\) and 3 more"):
        advantages(batch_of([value] * 8, [0] * 8))


def test_missing_column_is_named():
    batch = Batch.from_sequences([[1]]).with_tokens(loss_mask=np.ones(1, np.float32))
    with pytest.raises(BatchError, match="no column 'reward'"):
        advantages(batch)


def test_nothing_else_changes():
    batch = batch_of([1, 0], [0, 0])
    after = build(PluginRef("algorithm", "grpo"), CONTEXT)(batch)
    assert after.token_columns.keys() - batch.token_columns.keys() == {"advantages"}
    assert after.sample_columns.keys() == batch.sample_columns.keys()
    assert "advantages" not in batch


def test_no_rows_give_no_advantages():
    batch = Batch.from_sequences([]).with_tokens(loss_mask=np.zeros(0, np.float32))
    batch = batch.with_samples(reward=np.zeros(0, np.float32), group=np.zeros(0, np.int64))
    assert advantages(batch).shape == (0,)


# Eighths are exact in float64 under these shifts and scales, so spread stays spread and 0 stays 0.
REWARDS = st.lists(st.tuples(st.integers(-8, 8).map(lambda n: n / 8), st.integers(0, 3)), min_size=1, max_size=24)


@given(REWARDS, st.sampled_from(OPTIONS), st.randoms(use_true_random=False))
def test_order_of_rows_does_not_matter(rows, options, random):
    rewards, groups = map(np.array, zip(*rows, strict=True))
    order = np.array(random.sample(range(len(rows)), len(rows)))
    want = group_advantages(rewards, groups, **options)[order]
    got = group_advantages(rewards[order], groups[order], **options)
    np.testing.assert_allclose(got, want, atol=1e-12)


@given(REWARDS, st.sampled_from(OPTIONS), st.integers(-4, 4), st.sampled_from([0.5, 2.0, 64.0]))
def test_shift_changes_nothing_and_scale_only_without_std(rows, options, shift, scale):
    rewards, groups = map(np.array, zip(*rows, strict=True))
    base = group_advantages(rewards, groups, **options)
    shifted = group_advantages(rewards + shift, groups, **options)
    scaled = group_advantages(rewards * scale, groups, **options)
    np.testing.assert_allclose(shifted, base, atol=1e-9)
    # σ is at least 1/8 · sqrt(1/24) here, so that 1e-6 beside it (or beside half of it) is 8e-5 at most.
    expected = base * scale if options["normalize"] == "none" else base
    np.testing.assert_allclose(scaled, expected, rtol=1e-4, atol=1e-9)


@given(REWARDS, st.sampled_from(["group", "batch", "none"]))
def test_each_group_sums_to_zero(rows, normalize):
    rewards, groups = map(np.array, zip(*rows, strict=True))
    got = group_advantages(rewards, groups, normalize=normalize)
    np.testing.assert_allclose(np.bincount(groups, got), 0, atol=1e-9)


@given(REWARDS)
def test_the_leave_one_out_form_of_pass_at_k(rows):
    """The paper's definition: the best reward of all, less the best of the others."""
    rewards, groups = map(np.array, zip(*rows, strict=True))
    got = group_advantages(rewards, groups, normalize="none", variant="pass-at-k")
    for i, group in enumerate(groups):
        of_group, others = groups == group, (groups == group) & (np.arange(len(groups)) != i)
        expected = rewards[of_group].max() - rewards[others].max() if others.any() else 0
        assert got[i] == pytest.approx(expected, abs=1e-12)


def test_8192_rows_take_milliseconds():
    rng = np.random.default_rng(0)
    rewards, groups = rng.random(8192), rng.permutation(np.repeat(np.arange(1024), 8))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        group_advantages(rewards, groups, variant="pass-at-k")
        times.append(time.perf_counter() - start)
    assert min(times) < 0.05


def test_config_says_what_it_needs_and_brings():
    config = config_class("algorithm", "grpo")
    assert "groups" in config().needs()
    assert config().defaults() == {"loss": "clip", "aggregate": "seq-mean-token-mean"}
    assert config(normalize="none").defaults() == {"loss": "clip", "aggregate": "seq-mean-token-sum-norm"}
    with pytest.raises(PluginError, match="unknown option 'normalise'; did you mean 'normalize'"):
        build(PluginRef("algorithm", "grpo", {"normalise": "none"}), CONTEXT)
