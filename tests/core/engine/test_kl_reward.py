"""KL in the reward, with a coefficient that is fixed or follows a target."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from rlcore.data.batch import Batch
from rlcore.engine.kl_reward import KlReward
from rlcore.manifest.schema import KlSection


def settings(**keys: Any) -> KlSection:
    return KlSection.model_validate({"in": "reward", "coef": 0.1, "estimator": "k1"} | keys)


def batch_of(masks: list[list[int]], differences: list[float]) -> Batch:
    """``differences`` are log π − log π_ref, flat."""
    batch = Batch.from_sequences([range(len(mask)) for mask in masks])
    reference = np.full(len(batch.tokens), -2, np.float32)
    return batch.with_tokens(
        loss_mask=np.float32([live for mask in masks for live in mask]),
        old_logprobs=np.float32(reference + np.float32(differences)),
        ref_logprobs=reference,
    )


def test_a_fixed_coefficient_by_hand() -> None:
    """KL 1, 3 and −½; means over samples of 2 and −½ are ¾."""
    reward = KlReward(settings())
    batch, metrics = reward(batch_of([[0, 1, 1], [0, 1]], [9, 1, 3, 9, -0.5]))
    np.testing.assert_allclose(batch["token_rewards"], [0, -0.1, -0.3, 0, 0.05], atol=1e-7)
    assert metrics == {"reward/kl_to_reference": pytest.approx(0.75), "reward/kl_coef": 0.1}
    assert reward.coef == 0.1


@pytest.mark.parametrize(
    ("estimator", "want"),
    [("k1", 0.5), ("abs", 0.5), ("k2", 0.125), ("k3", math.exp(-0.5) + 0.5 - 1), ("k3+", math.exp(-0.5) + 0.5 - 1)],
)
def test_every_estimator(estimator: str, want: float) -> None:
    batch, _ = KlReward(settings(coef=1.0, estimator=estimator))(batch_of([[0, 1]], [0, 0.5]))
    np.testing.assert_allclose(batch["token_rewards"], [0, -want], rtol=1e-5)


def test_the_controller_by_hand() -> None:
    """verl 0.9.1: β .1, target 6, horizon 10000, KL 12, n 256. The error, 1, counts as .2: .1 (1 + .2 · .0256)."""
    reward = KlReward(settings(target=6.0, horizon=10000))
    _, metrics = reward(batch_of([[0, 1]] * 256, [0, 12] * 256))
    assert reward.coef == pytest.approx(0.100512, rel=1e-12)
    assert metrics["reward/kl_coef"] == 0.1  # what this step was charged


@pytest.mark.parametrize(
    ("kl", "error"),
    [(6.0, 0.0), (6.6, 0.1), (5.4, -0.1), (0.0, -0.2), (-3.0, -0.2), (600.0, 0.2)],
)
def test_the_coefficient_moves_with_the_relative_error(kl: float, error: float) -> None:
    reward = KlReward(settings(target=6.0, horizon=40))
    reward(batch_of([[0, 1]] * 4, [0, kl] * 4))
    assert reward.coef == pytest.approx(0.1 * (1 + error * 4 / 40), rel=1e-6)


def test_what_is_masked_may_be_anything() -> None:
    for rubbish in (np.nan, np.inf, -np.inf):
        batch, metrics = KlReward(settings())(batch_of([[0, 1], [0, 0]], [rubbish, 2, rubbish, rubbish]))
        assert batch["token_rewards"].tolist() == pytest.approx([0, -0.2, 0, 0])
        assert metrics["reward/kl_to_reference"] == pytest.approx(2)  # of the one sample that has a live token


def test_without_a_live_token_nothing_moves() -> None:
    reward = KlReward(settings(target=6.0, horizon=10))
    batch, metrics = reward(batch_of([[0, 0]], [1, 1]))
    assert not batch["token_rewards"].any()
    assert metrics["reward/kl_to_reference"] == 0
    assert np.isfinite(reward.coef)


def test_the_coefficient_is_resumed_where_it_adapts() -> None:
    reward = KlReward(settings(target=1.0, horizon=10))
    reward(batch_of([[0, 1]], [0, 5]))
    again = KlReward(settings(target=1.0, horizon=10))
    again.restore(reward.state())
    assert again.coef == reward.coef != 0.1
    fixed = KlReward(settings(coef=0.3))
    fixed.restore(reward.state())
    assert fixed.coef == 0.3  # the manifest's, which may have been changed for the resumed run
