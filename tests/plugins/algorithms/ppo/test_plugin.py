from __future__ import annotations

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
from rlcore_ppo.gae import generalised_advantages

CONTEXT = AlgorithmContext(samples_per_prompt=1, max_response_tokens=8, seed=0)


def batch_of(rewards, masks, values, truncated=None, **token_columns):
    """``values`` are flat, one for each token."""
    batch = Batch.from_sequences([range(len(mask)) for mask in masks])
    batch = batch.with_tokens(
        loss_mask=np.concatenate([np.float32(mask) for mask in masks]),
        values=np.float32(values),
        **{name: np.float32(column) for name, column in token_columns.items()},
    )
    return batch.with_samples(
        reward=np.float32(rewards),
        group=np.arange(len(masks)),
        truncated=np.array([False] * len(masks) if truncated is None else truncated),
    )


def estimate(batch, **options):
    return build(PluginRef("algorithm", "ppo", options), CONTEXT)(batch)


def raw(batch, **options):
    """Advantages before whitening, as a list."""
    return estimate(batch, whiten=False, **options)["advantages"].tolist()


def test_golden_values_of_verl():
    """verl 0.9.1: γ = 1, λ = .95. By hand for row 0: δ = .1, .1, .7, so A = .82675, .765, .7 before whitening."""
    masks = [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]
    values = [0.1, 0.2, 0.3, 9, 0.1, 0.2, 9, 9, 0.1, 0.2, 0.3, 0.4, 0.5, 9, 9, 9]
    out = estimate(batch_of([1, 0, 0.5, 1], masks, values), gamma=1, lam=0.95)
    np.testing.assert_allclose(out["advantages"][:3], [1.3578, 1.18365, 1.00034], atol=1e-5)
    np.testing.assert_allclose(out["returns"][:3], [0.92675, 0.965, 1.0], atol=1e-6)
    masked = np.concatenate(masks) == 0
    assert out["advantages"].dtype == out["returns"].dtype == np.float32
    assert not out["advantages"][masked].any()
    assert not out["returns"][masked].any()


def test_three_tokens_by_hand():
    """γ = ½, λ = ½; V = 1, 2, 4; reward 8 at the end. δ = 0 + ½·2 − 1, ½·4 − 2, 8 − 4; A = δ + ¼ A_next."""
    out = estimate(batch_of([8], [[0, 1, 1, 1]], [7, 1, 2, 4]), gamma=0.5, lam=0.5, whiten=False)
    assert out["advantages"].tolist() == [0, 0.25, 1, 4]
    assert out["returns"].tolist() == [0, 1.25, 3, 8]


def test_with_both_at_one_it_is_the_return_less_the_value():
    batch = batch_of([5], [[1, 1, 1]], [1, 2, 3], token_rewards=[1, 0, -2])
    assert raw(batch, gamma=1, lam=1) == [4 - 1, 3 - 2, 3 - 3]
    assert estimate(batch, gamma=1, lam=1)["returns"].tolist() == [4, 3, 3]


def test_without_discounted_future_each_token_has_its_own_reward():
    """γ = 0 leaves δ_t = r_t − V_t, whatever λ."""
    batch = batch_of([5], [[1, 1, 1]], [1, 2, 3], token_rewards=[1, 0, -2])
    assert raw(batch, gamma=0, lam=1) == [0, -2, 0]
    assert estimate(batch, gamma=0)["returns"].tolist() == [1, 0, 3]


def test_lambda_zero_is_one_step():
    assert raw(batch_of([5], [[1, 1, 1]], [1, 2, 4]), gamma=1, lam=0) == [1, 2, 1]


@pytest.mark.parametrize("rubbish", [100.0, np.nan, -np.inf])
def test_what_a_tool_said_is_skipped(rubbish):
    """Field case A10: value and reward of an observation don't count; the policy's tokens are neighbours."""
    gap = batch_of(
        [3],
        [[0, 1, 1, 0, 0, 1, 1, 0]],
        [rubbish, 0.5, 1, rubbish, rubbish, 2, 0.25, rubbish],
        token_rewards=[rubbish, 0, 1, rubbish, rubbish, 0, 0, rubbish],
    )
    none = batch_of([3], [[1, 1, 1, 1]], [0.5, 1, 2, 0.25], token_rewards=[0, 1, 0, 0])
    live = gap["loss_mask"] == 1
    for options in ({"gamma": 0.5, "lam": 0.5}, {"gamma": 1, "lam": 0.95}):
        got, want = estimate(gap, **options), estimate(none, **options)
        for name in ("advantages", "returns"):
            assert got[name][live].tolist() == want[name].tolist()
            assert not got[name][~live].any()
    # δ = 0, 1 + ½·2 − 1, ½·¼ − 2, 3 − ¼
    last = 2.75
    third = -1.875 + last / 4
    second = 1 + third / 4
    assert raw(gap, gamma=0.5, lam=0.5) == [0, second / 4, second, 0, 0, third, last, 0]


def test_rows_do_not_see_each_other_and_may_be_empty():
    batch = batch_of([1, 7, 2, 7], [[1, 1], [0, 0, 0], [0, 1], []], [0, 1, 5, 5, 5, 5, 0.5])
    assert raw(batch, gamma=1, lam=1) == [1, 0, 0, 0, 0, 0, 1.5]
    out = estimate(Batch.from_sequences([]).with_tokens(loss_mask=np.zeros(0), values=np.zeros(0)).with_samples(
        reward=np.zeros(0), truncated=np.zeros(0, bool)))  # fmt: skip
    assert out["advantages"].shape == out["returns"].shape == (0,)


def test_what_a_truncated_response_bootstraps_from():
    """γ = ½, λ = 1: the value of the last live token stands for what would have followed, where the option says so."""
    batch = batch_of([3, 3], [[1, 1, 0], [1, 1, 0]], [1, 2, 9, 1, 2, 9], truncated=[True, False])
    ended = [0 + 0.5 * 1, 3 - 2, 0]
    assert raw(batch, gamma=0.5, lam=1) == [*ended, *ended]
    assert raw(batch, gamma=0.5, lam=1, truncation="value") == [0 + 0.5 * 2, 3 + 0.5 * 2 - 2, 0, *ended]


def test_whitened_over_all_live_tokens():
    batch = batch_of([1, 0, 5], [[0, 1, 1], [1], [1, 1]], [9, 0.5, 0.25, -1, 2, 0])
    live = batch["loss_mask"] == 1
    whitened, plain = estimate(batch)["advantages"], np.float64(raw(batch))
    assert not whitened[~live].any()
    # mean 0, variance (n − 1) 1 but for 1e-8, order kept
    np.testing.assert_allclose(whitened[live].mean(), 0, atol=1e-7)
    np.testing.assert_allclose(whitened[live].var(ddof=1), 1, rtol=1e-6)
    shift = plain[live].mean()
    np.testing.assert_allclose(whitened[live], (plain[live] - shift) / plain[live].std(ddof=1), rtol=1e-5)
    np.testing.assert_array_equal(estimate(batch)["returns"], estimate(batch, whiten=False)["returns"])


def test_one_live_token_is_no_crash():
    """Field case A11: its advantage over the mean of itself is 0; unwhitened it keeps what it had."""
    batch = batch_of([1], [[0, 1]], [0, 0.25])
    assert estimate(batch)["advantages"].tolist() == [0, 0]
    assert raw(batch) == [0, 0.75]
    assert estimate(batch)["returns"].tolist() == [0, 1]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_none_name_their_rows(value):
    good = batch_of([1, 0], [[1, 1], [1]], [0, 0, 0])
    with pytest.raises(BatchError, match=r"rewards must be finite numbers; rows 1 \("):
        estimate(good.with_samples(reward=np.float32([0, value])))
    with pytest.raises(BatchError, match=r"values must be finite numbers; rows 0 \("):
        estimate(good.with_tokens(values=np.float32([0, value, 0])))
    with pytest.raises(BatchError, match=r"token_rewards must be finite numbers; rows 1 \("):
        estimate(good.with_tokens(token_rewards=np.float32([0, 0, value])))


@pytest.mark.parametrize("option", ["gamma", "lam"])
@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_discounts_outside_zero_to_one_are_refused(option, value):
    with pytest.raises(PluginError, match=rf"option {option}: .* than or equal to [01], got {value}"):
        estimate(batch_of([1], [[1]], [0]), **{option: value})


def test_config_says_what_it_needs_and_brings():
    config = config_class("algorithm", "ppo")()
    assert config.needs() == {"batch:values"}
    assert config.defaults() == {"loss": "clip", "aggregate": "token-mean"}
    assert (config.gamma, config.lam, config.truncation, config.whiten) == (1.0, 0.95, "zero", True)


def definition(rewards, values, gamma, lam, following):
    """Eq. 11 and 16 written out, token by token, as sums over the future; for one row without gaps."""
    after = [*values, following][1:]
    deltas = [r + gamma * n - v for r, n, v in zip(rewards, after, values, strict=True)]
    return [sum((gamma * lam) ** k * d for k, d in enumerate(deltas[t:])) for t in range(len(deltas))]


number = st.integers(-8, 8).map(lambda n: n / 4)
row = st.lists(st.tuples(st.booleans(), number, number), max_size=6)


ROWS = st.lists(st.tuples(row, number, st.booleans()), min_size=1, max_size=5)


@given(ROWS, st.sampled_from([0, 0.5, 0.9, 1]), st.booleans())
def test_every_row_is_the_definition_on_its_live_tokens(rows, discount, bootstrap):
    batch = batch_of(
        [reward for _, reward, _ in rows],
        [[live for live, _, _ in tokens] for tokens, _, _ in rows],
        [value for tokens, _, _ in rows for _, value, _ in tokens],
        [cut for _, _, cut in rows],
        token_rewards=[given for tokens, _, _ in rows for _, _, given in tokens],
    )
    got = generalised_advantages(batch, gamma=discount, lam=0.75, bootstrap_truncated=bootstrap)
    assert not got[batch["loss_mask"] == 0].any()
    for i, (tokens, reward, cut) in enumerate(rows):
        values = [value for live, value, _ in tokens if live]
        rewards = [given for live, _, given in tokens if live]
        if values:
            rewards[-1] += reward
        want = definition(rewards, values, discount, 0.75, values[-1] if values and cut and bootstrap else 0)
        part = slice(batch.offsets[i], batch.offsets[i + 1])
        np.testing.assert_allclose(got[part][batch["loss_mask"][part] == 1], want, atol=1e-12)


def test_8192_rows_of_1000_tokens_take_less_than_a_second():
    rng = np.random.default_rng(0)
    rows = 8192
    batch = Batch.from_sequences(np.split(np.zeros(rows * 1000, np.int32), rows)).with_tokens(
        loss_mask=np.tile(np.arange(1000) >= 100, rows), values=rng.random(rows * 1000, np.float32)
    )
    batch = batch.with_samples(reward=rng.random(rows, np.float32), truncated=np.zeros(rows, bool))
    times = []
    for _ in range(3):
        start = time.process_time()
        generalised_advantages(batch, gamma=1.0, lam=0.95, bootstrap_truncated=False)
        times.append(time.process_time() - start)
    print(f"{min(times):.2f} s of CPU")
    assert min(times) < 1
