"""What must hold for every batch: order of rows, shift and scale of rewards, tokens of tools."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rlcore import Batch

ALL = ("rloo", "reinforce-plus-plus", "reinforce-plus-plus-baseline", "remax", "opo", "gpg", "gdpo")
WHITENED = ("reinforce-plus-plus", "reinforce-plus-plus-baseline", "gdpo")
WEIGHTS = {"a": 1.0, "b": 0.5}

# Eighths are exact under these shifts and scales, so spread stays spread and 0 stays 0.
EIGHTHS = st.integers(-8, 8).map(lambda n: n / 8)
ROW = st.tuples(EIGHTHS, EIGHTHS, EIGHTHS, st.integers(0, 3), st.lists(st.integers(0, 1), min_size=1, max_size=5))
ROWS = st.lists(ROW, min_size=1, max_size=16)


@pytest.fixture(scope="module")
def make(batch_of):
    """A batch of rows (reward a, reward b, greedy reward, group, mask), with rewards shifted and scaled."""

    def make(rows, *, shift=0.0, scale=1.0) -> Batch:
        a, b, greedy, groups, masks = zip(*rows, strict=True)
        a, b, greedy = (np.array(column) * scale + shift for column in (a, b, greedy))
        return batch_of(a, groups, masks, {"reward/a": a, "reward/b": b, "baseline_reward": greedy})

    return make


def close(got, want, tolerance=1e-5):
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ALL)
@given(rows=ROWS, random=st.randoms(use_true_random=False))
def test_order_of_rows(make, advantages, name, rows, random):
    batch = make(rows)
    order = np.array(random.sample(range(len(rows)), len(rows)))
    want = batch.with_tokens(advantages=advantages(name, batch, WEIGHTS)).select(order)["advantages"]
    close(advantages(name, batch.select(order), WEIGHTS), want)


@pytest.mark.parametrize("name", ALL)
@given(rows=ROWS, shift=st.integers(-4, 4))
def test_a_constant_on_every_reward_changes_nothing(make, advantages, name, rows, shift):
    """Each compares with something that shifts too: a group, a greedy sample, the batch (without discount)."""
    close(advantages(name, make(rows, shift=shift), WEIGHTS), advantages(name, make(rows), WEIGHTS))


@pytest.mark.parametrize("name", ALL)
@given(rows=ROWS, scale=st.sampled_from([0.5, 2.0, 64.0]))
def test_scale_of_rewards(make, advantages, name, rows, scale):
    """Advantages scale with rewards, but for those that are whitened."""
    batch = make(rows)
    got, base = advantages(name, make(rows, scale=scale), WEIGHTS), advantages(name, batch, WEIGHTS)
    if name not in WHITENED:
        close(got, base * scale)
        return
    # Beside a variance of 1e-4 before whitening, 1e-8 is 2e-4 of half its standard deviation. For gdpo there is also
    # the 1e-6 beside a group's standard deviation, 6e-5 at most, twice, of advantages that spread by 1e-2.
    assume(not base.any() or base[batch["loss_mask"] == 1].var(ddof=1) > 0.9999)
    close(got, base, 2e-2 if name == "gdpo" else 1e-3)


@pytest.mark.parametrize("name", WHITENED)
@given(rows=ROWS)
def test_whitened_advantages_have_mean_0_and_variance_1_at_most(make, advantages, name, rows):
    """Less only by the 1e-8 beside a tiny variance; returns, in eighths, have none so small."""
    batch = make(rows)
    live = advantages(name, batch, WEIGHTS)[batch["loss_mask"] == 1].astype(float)
    assert live.sum() == pytest.approx(0, abs=1e-4)
    if live.any():
        assert live.var(ddof=1) < 1 + 1e-5
        assert name != "reinforce-plus-plus" or live.var(ddof=1) == pytest.approx(1, rel=1e-3)


@given(rows=ROWS)
def test_sums_over_groups(make, advantages, rows):
    """rloo and gpg: over the rows of a group, 0. opo: over its live tokens, 0."""
    batch = make([(*row[:4], [1, *row[4]]) for row in rows])
    first = batch.offsets[:-1]
    for name in ("rloo", "gpg"):
        close(np.bincount(batch["group"], advantages(name, batch)[first]), 0)
    close(np.bincount(batch.spread(batch["group"]), advantages("opo", batch)), 0)


@given(rows=ROWS)
def test_relations_between_them(make, advantages, rows):
    """rloo is n / (n − 1) times Dr. GRPO, gpg N / (N − M) times; opo of equal lengths is Dr. GRPO."""
    batch = make([(*row[:4], [1]) for row in rows])
    dr = advantages("grpo", batch, normalize="none").astype(float)
    sizes = np.bincount(batch["group"])[batch["group"]]
    close(advantages("rloo", batch), dr * sizes / np.maximum(sizes - 1, 1))
    spread = [np.ptp(batch["reward"][batch["group"] == group]) > 0 for group in batch["group"]]
    close(advantages("gpg", batch), dr * len(rows) / max(1, sum(spread)))
    close(advantages("opo", batch), dr)


@pytest.mark.parametrize("name", ALL)
@given(rows=ROWS, at=st.integers(0, 5))
def test_a_tools_tokens_change_nothing(make, advantages, name, rows, at):
    """Two masked tokens put into every row, at any place."""
    batch = make(rows)
    longer = make([(*row[:4], [*row[4][:at], 0, 0, *row[4][at:]]) for row in rows])
    got, want = advantages(name, longer, WEIGHTS), advantages(name, batch, WEIGHTS)
    close(got[longer["loss_mask"] == 1], want[batch["loss_mask"] == 1])


@given(rows=ROWS, weight=st.sampled_from([0.0, 0.25, 4.0]))
def test_gdpo_of_one_reward_is_grpo_whitened_whatever_its_weight(make, advantages, rows, weight):
    batch = make(rows)
    grpo = advantages("grpo", batch).astype(float)
    live = grpo[batch["loss_mask"] == 1]
    got = advantages("gdpo", batch, {"a": weight})[batch["loss_mask"] == 1]
    if weight == 0 or not live.any():
        assert not got.any()
        return
    # Where all live tokens have nearly one advantage, 1e-8 beside the variance counts.
    assume(len(live) > 1 and live.var() > 1e-4)
    close(got, (live - live.mean()) / live.std(ddof=1), 2e-3)
