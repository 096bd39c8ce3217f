"""Each estimator on inputs small enough for paper and pencil."""

import numpy as np
import pytest
from rlcore import AlgorithmContext, Batch
from rlcore.errors import BatchError, PluginError
from rlcore.plugins.config import PluginRef
from rlcore.plugins.loading import build, config_class

GROUPED = ("rloo", "reinforce-plus-plus-baseline", "opo", "gpg", "gdpo")
ALL = (*GROUPED, "reinforce-plus-plus", "remax")
WEIGHTS = {"a": 1.0, "b": 2.0}

# verl's inputs: rewards at the last live token, groups a, a, b, b.
REWARDS, GROUPS = [1, 0, 0.5, 1], [7, 7, 3, 3]
MASKS = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]])


def everything(rewards, **columns):
    """The sample columns that one of the estimators reads, all from one list of rewards."""
    return {"baseline_reward": np.zeros(len(rewards)), "reward/a": rewards, "reward/b": rewards, **columns}


@pytest.mark.parametrize(
    ("name", "rows"),
    # What verl 0.9.1 returned for these inputs, at the live tokens.
    [
        ("rloo", [1, -1, -0.5, 0.5]),
        ("opo", [0.4, -0.6, -0.1, 0.4]),
        ("reinforce-plus-plus-baseline", [1.26253, -1.14229, -0.54108, 0.66132]),
        ("reinforce-plus-plus", [1.01418, -1.52128, -0.25355, 1.01418]),
        ("remax", [0, -1, 0.5, 1]),
    ],
)
def test_golden_values(advantages, batch_of, name, rows):
    got = advantages(name, batch_of(REWARDS, GROUPS, MASKS.tolist(), {"baseline_reward": [1, 1, 0, 0]}))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got.reshape(4, 4), np.array(rows)[:, None] * MASKS, atol=5e-6)


def test_golden_values_of_gpg_but_for_alpha(advantages, batch_of):
    """verl scales by rows over rows whose *reward* isn't 0, here 4/3; the paper by rows over rows that teach: 1."""
    got = advantages("gpg", batch_of(REWARDS, GROUPS, MASKS.tolist()))
    verl = np.array([0.66667, -0.66667, -0.33333, 0.33333])
    np.testing.assert_allclose(got.reshape(4, 4) * (4 / 3), verl[:, None] * MASKS, atol=1e-5)


def test_gpg_makes_up_for_groups_without_spread(advantages, batch_of):
    """8 samples, 6 of them in groups that are all right or all wrong: α = 8 / (8 − 6)."""
    got = advantages("gpg", batch_of([1, 0, 1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 2, 2, 2]))
    assert got.tolist() == [2, -2, 0, 0, 0, 0, 0, 0]


def test_rloo_compares_with_the_others(advantages, batch_of):
    """Uneven and interleaved. Group 1 has rewards 4, 1, 1 (the others' means 1, 2.5, 2.5), group 2 1, 3 (3, 1)."""
    got = advantages("rloo", batch_of([4, 1, 1, 3, 1], [1, 2, 1, 2, 1]))
    np.testing.assert_allclose(got, [3, -2, -1.5, 2, -1.5])


def test_opo_weighs_with_live_tokens(advantages, batch_of):
    """Lengths 3 and 1, with a tool's token between: the baseline is (3·1 + 1·0) / 4. The masked row doesn't count."""
    got = advantages("opo", batch_of([1, 0, 100], [0, 0, 0], [[1, 0, 1, 1], [1], [0, 0]]))
    np.testing.assert_allclose(got, [0.25, 0, 0.25, 0.25, -0.75, 0, 0])


def test_opo_is_the_baseline_of_least_variance(advantages, batch_of):
    """Of Σ ℓ_j (r_j − b)², the variance if the squared gradient is proportional to length: no other b has less."""
    rng = np.random.default_rng(0)
    rewards, lengths = rng.random(5), rng.integers(1, 9, 5)
    got = advantages("opo", batch_of(rewards, [0] * 5, [[1] * n for n in lengths]))
    first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    variance = (lengths * got[first].astype(float) ** 2).sum()
    for b in np.linspace(0, 1, 101):
        assert variance <= (lengths * (rewards - b) ** 2).sum() + 1e-6


def whitened(values):
    values = np.array(values, float)
    return (values - values.mean()) / np.sqrt(values.var(ddof=1) + 1e-8)


def test_reinforce_plus_plus_discounts_over_generated_tokens(advantages, batch_of):
    """Returns by hand, γ = ½; the tool's tokens take no time, and what they hold is not read."""
    batch = batch_of(
        [4, 2],
        [0, 1],
        [[0, 1, 1, 0, 0, 1], [1, 1]],
        token_rewards=[np.nan, 0, 1, 9, np.nan, -1, 0, 0],
    )
    got = advantages("reinforce-plus-plus", batch, gamma=0.5)
    # Row 0, from the end: 4 − 1 = 3; 1 + 3/2 = 2.5; 0 + 2.5/2 = 1.25. Row 1: 2; 1.
    expected = whitened([1.25, 2.5, 3, 1, 2])
    np.testing.assert_allclose(got, [0, *expected[:2], 0, 0, *expected[2:]], rtol=1e-6)


def test_reinforce_plus_plus_has_the_reward_at_each_token_without_discount(advantages, batch_of):
    """Field case A11: over all live tokens of the batch, with n − 1, and nothing under the mask counts."""
    got = advantages("reinforce-plus-plus", batch_of([1, 0], [0, 1], [[1, 1, 0], [1, 0, 0]]))
    # 1, 1, 0: mean 2/3, variance 1/3.
    root = np.sqrt(1 / 3 + 1e-8)
    np.testing.assert_allclose(got, [1 / 3 / root, 1 / 3 / root, 0, -2 / 3 / root, 0, 0], rtol=1e-6)


def test_a_single_live_token_gets_zero(advantages, batch_of):
    """Field case A11: whitening one number is no error."""
    assert advantages("reinforce-plus-plus", batch_of([5, 3], [0, 0], [[0, 1], [0]])).tolist() == [0, 0, 0]


def test_remax_adds_what_comes_after_a_token(advantages, batch_of):
    batch = batch_of(
        [1, 0], [0, 0], [[1, 0, 1], [1, 1]], {"baseline_reward": [0.25, 0.25]}, token_rewards=[-1, 7, -0.5, 0, -2]
    )
    assert advantages("remax", batch).tolist() == [-0.75, 0, 0.25, -2.25, -2.25]


def test_gdpo_normalises_each_reward_by_itself(advantages, batch_of):
    """Reward a is ten times b's size and doesn't hide it. b is flat in group 1, where only a counts."""
    rewards = {"reward/a": [10, 0, 0, 10], "reward/b": [0, 1, 1, 1]}
    got = advantages("gdpo", batch_of([0] * 4, [0, 0, 1, 1], samples=rewards), WEIGHTS)
    # Each pair's deviations are ±half a step, its standard deviation is step / √2.
    a = np.array([5, -5, -5, 5]) / (10 / np.sqrt(2) + 1e-6)
    b = np.array([-0.5, 0.5, 0, 0]) / (1 / np.sqrt(2) + 1e-6)
    np.testing.assert_allclose(got, whitened(a + 2 * b), rtol=1e-6)


def test_gdpo_tells_apart_what_grpo_of_the_sum_does_not(advantages, batch_of):
    """The paper's figure 2: of two binary rewards, (0, 1) and (0, 2) right; GRPO gives both pairs ±0.7071."""
    rewards = {"reward/a": [0, 1, 0, 1], "reward/b": [0, 0, 0, 1]}
    got = advantages("gdpo", batch_of([0, 1, 0, 2], [0, 0, 1, 1], samples=rewards), {"a": 1, "b": 1})
    assert got[3] == pytest.approx(2 * got[1], rel=1e-5)


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("rewards", [[0.1] * 7, [0.0] * 5, [-3.7] * 3, [1e6] * 4, [0.95]])
def test_without_spread_everything_is_exactly_zero(advantages, batch_of, name, rewards):
    """Field case A01, and a group of one: its prompt teaches nothing, so there is no raw score to train on."""
    batch = batch_of(rewards, [5] * len(rewards), [[1] * (i + 1) for i in range(len(rewards))], everything(rewards))
    assert not advantages(name, batch, WEIGHTS).any()


@pytest.mark.parametrize("name", ["rloo", "opo", "gpg"])
def test_a_group_without_spread_stays_zero_beside_others(advantages, batch_of, name):
    """Field case A05: sizes 4, 3, 4, interleaved; the middle group all 5.0. Nothing is normalised over the batch."""
    rewards, groups = [1, 9, 5, 0, 0, 5, 2, 4, 5, 1, 3], [1, 3, 2, 1, 1, 2, 3, 3, 2, 1, 3]
    got = advantages(name, batch_of(rewards, groups))
    assert not got[np.array(groups) == 2].any()
    assert got[np.array(groups) != 2].all()


@pytest.mark.parametrize("name", ALL)
def test_masked_rows(advantages, batch_of, name):
    """A row without a live token gets 0, and so does a batch of them; an empty batch has nothing."""
    rewards, groups = [1, 0, 0.5], [0, 0, 0]
    batch = batch_of(rewards, groups, [[1, 1], [0, 0], [0, 1]], everything(rewards))
    got = advantages(name, batch, WEIGHTS)
    assert np.isfinite(got).all()
    assert got[:2].all()
    assert not got[2:5].any()
    assert not advantages(name, batch.with_tokens(loss_mask=np.zeros(6, np.float32)), WEIGHTS).any()
    assert advantages(name, batch.select(np.zeros(0, int)), WEIGHTS).shape == (0,)


@pytest.mark.parametrize("name", ALL)
def test_numbers_that_are_none_name_their_rows(advantages, batch_of, name):
    bad = [1, np.nan, 0, np.inf]
    batch = batch_of(bad, [0, 0, 1, 1], samples=everything(bad))
    with pytest.raises(BatchError, match=r"rewards.* must be finite numbers; rows 1 \(nan\), 3 \(inf\) of the batch"):
        advantages(name, batch, WEIGHTS)


@pytest.mark.parametrize("name", [name for name in ALL if name != "gdpo"])
def test_token_rewards_that_are_no_numbers_name_their_rows(advantages, batch_of, name):
    batch = batch_of([1, 0], [0, 0], samples=everything([1, 0]), token_rewards=[0, np.nan])
    with pytest.raises(BatchError, match=r"sums of token_rewards must be finite numbers; rows 1 \(nan\) of"):
        advantages(name, batch)


def test_remax_wants_numbers_of_greedy_samples(advantages, batch_of):
    with pytest.raises(BatchError, match=r"rewards of greedy samples must be finite numbers; rows 0 \(nan\) of"):
        advantages("remax", batch_of([1, 0], [0, 0], samples={"baseline_reward": [np.nan, 0]}))
    with pytest.raises(BatchError, match="no column 'baseline_reward'"):
        advantages("remax", batch_of([1, 0], [0, 0]))


def test_gdpo_says_what_it_cannot_do(advantages, batch_of):
    with pytest.raises(BatchError, match="no column 'reward/b'"):
        advantages("gdpo", batch_of([1, 0], [0, 0], samples={"reward/a": [1, 0]}), WEIGHTS)
    with pytest.raises(BatchError, match=r"set algorithm\.kl\.in to loss"):
        advantages("gdpo", batch_of([1, 0], [0, 0], samples=everything([1, 0]), token_rewards=[0, 0]), WEIGHTS)
    with pytest.raises(PluginError, match="the run has none"):
        build(PluginRef("algorithm", "gdpo"), AlgorithmContext(4, 8, seed=0))


@pytest.mark.parametrize("gamma", [-0.1, 1.1])
def test_gamma_is_between_0_and_1(gamma):
    with pytest.raises(PluginError, match="gamma"):
        build(PluginRef("algorithm", "reinforce-plus-plus", {"gamma": gamma}), AlgorithmContext(4, 8, seed=0))


@pytest.mark.parametrize(
    ("name", "needs", "aggregate"),
    [
        ("rloo", {"groups"}, "seq-mean-token-sum"),
        ("reinforce-plus-plus", set(), "token-mean"),
        ("reinforce-plus-plus-baseline", {"groups"}, "token-mean"),
        ("remax", {"batch:baseline_reward"}, "seq-mean-token-sum"),
        ("opo", {"groups"}, "seq-mean-token-sum"),
        ("gpg", {"groups"}, "token-mean"),
        ("gdpo", {"groups"}, "seq-mean-token-mean"),
    ],
)
def test_what_each_needs_and_brings(name, needs, aggregate):
    config = config_class("algorithm", name)()
    assert config.needs() == needs
    assert config.defaults() == {"loss": "reinforce" if name == "gpg" else "clip", "aggregate": aggregate}


@pytest.mark.parametrize("name", ALL)
def test_nothing_but_advantages_is_added(batch_of, name):
    batch = batch_of([1, 0], [0, 0], samples=everything([1, 0]))
    out: Batch = build(PluginRef("algorithm", name), AlgorithmContext(2, 8, seed=0, reward_weights=WEIGHTS))(batch)
    assert out.token_columns.keys() - batch.token_columns.keys() == {"advantages"}
    assert out.sample_columns.keys() == batch.sample_columns.keys()
    assert len(out) == len(batch)
