"""What an advantage estimator must do."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from rlcore.data.batch import Batch
from rlcore.manifest.schema import AlgorithmSection
from rlcore.plugins.config import AlgorithmConfig
from rlcore.plugins.interfaces import AdvantageEstimator, AlgorithmContext
from rlcore.plugins.kinds import Kind
from rlcore.plugins.loading import build, config_class
from rlcore.testing.contracts.plugin import PluginContract

_PROMPTS = 5
_REWARD_WEIGHTS = {"first": 1.0, "second": 0.5}
_SAMPLE_COLUMNS = ("baseline_reward",)  # of what an estimator may need, those that are no token columns


class AdvantageContract(PluginContract):
    """Subclass with ``plugin``; ``whole_batch = True`` for an estimator that compares groups but also scales by what
    all of them have in common, as the spread of the whole batch.
    """

    kind: ClassVar[Kind] = "algorithm"
    samples_per_prompt: ClassVar[int] = 4
    whole_batch: ClassVar[bool] = False

    @pytest.fixture
    def estimator(self) -> AdvantageEstimator:
        """The estimator as a run builds it."""
        context = AlgorithmContext(self.samples_per_prompt, 8, seed=0, reward_weights=_REWARD_WEIGHTS)
        estimator: AdvantageEstimator = build(self.ref(), context)
        return estimator

    def batch(self, seed: int = 0) -> Batch:
        """Samples of a few prompts, mixed up, with all columns the estimator needs; the last has no live token."""
        rng = np.random.default_rng(seed)
        n = _PROMPTS * self.samples_per_prompt
        prompts, responses = rng.integers(1, 5, n), rng.integers(1, 8, n)
        batch = Batch.from_sequences([rng.integers(0, 50, p + r) for p, r in zip(prompts, responses, strict=True)])
        position = np.arange(len(batch.tokens)) - batch.spread(batch.offsets[:-1])
        live = (position >= batch.spread(prompts)) & (batch.rows < n - 1) & (rng.random(len(position)) < 0.9)
        wanted = {name.removeprefix("batch:") for name in self.config().needs() if name.startswith("batch:")}
        columns = {
            name: rng.normal(size=len(position)).astype(np.float32) * live
            for name in sorted(wanted.difference(_SAMPLE_COLUMNS))
        }
        rewards = {name: rng.normal(size=n).astype(np.float32) for name in _REWARD_WEIGHTS}
        return batch.with_tokens(loss_mask=live.astype(np.float32), **columns).with_samples(
            group=rng.permutation(np.repeat(1000 - 7 * np.arange(_PROMPTS), self.samples_per_prompt)),
            unit=np.arange(n),
            reward=np.sum([_REWARD_WEIGHTS[name] * reward for name, reward in rewards.items()], axis=0),
            **{f"reward/{name}": reward for name, reward in rewards.items()},
            **{name: rng.normal(size=n).astype(np.float32) for name in sorted(wanted.intersection(_SAMPLE_COLUMNS))},
            truncated=rng.random(n) < 0.2,
            response_tokens=responses,
            weight_version=np.zeros(n, np.int64),
            row=np.arange(n),
        )

    def test_defaults_are_keys_of_the_section(self) -> None:
        """What it brings to the manifest's ``algorithm`` section is known there."""
        config = self.config()
        assert isinstance(config, AlgorithmConfig)
        defaults = dict(config.defaults())
        if loss := defaults.get("loss"):
            section = {"use": loss} if isinstance(loss, str) else dict(loss)  # a name stands for a section
            defaults["loss"] = {"use": section.pop("use")}
            config_class("loss", defaults["loss"]["use"]).model_validate(section)
        AlgorithmSection.model_validate({"use": self.plugin, **defaults})

    def test_adds_finite_advantages(self, estimator: AdvantageEstimator) -> None:
        """float32[T], and not all zero."""
        out = estimator(self.batch())
        assert out["advantages"].dtype == np.float32
        assert np.isfinite(out["advantages"]).all()
        assert out["advantages"].any()

    def test_leaves_its_input_alone(self, estimator: AdvantageEstimator) -> None:
        """Whatever rows it keeps, tokens and columns are as they were; the same batch gives the same again."""
        batch = self.batch()
        out = estimator(batch)
        kept = batch.select(out["row"])
        assert np.array_equal(out.tokens, kept.tokens)
        for name in ("loss_mask", "group", "reward"):
            assert np.array_equal(out[name], kept[name]), name
        assert "advantages" not in batch
        assert np.array_equal(estimator(batch)["advantages"], out["advantages"])

    def test_masked_tokens_get_zero(self, estimator: AdvantageEstimator) -> None:
        """Exactly zero where ``loss_mask`` is 0."""
        out = estimator(self.batch())
        assert not out["advantages"][out["loss_mask"] == 0].any()

    def test_what_is_under_the_mask_may_be_anything(self, estimator: AdvantageEstimator) -> None:
        """Whatever a masked token holds, and also where every token is masked."""
        batch = self.batch()
        masked = batch["loss_mask"] == 0
        columns = {
            name: np.where(masked, np.nan, column)
            for name, column in batch.token_columns.items()
            if name != "loss_mask"
        }
        np.testing.assert_array_equal(
            estimator(batch.with_tokens(**columns))["advantages"], estimator(batch)["advantages"]
        )
        none_live = batch.with_tokens(loss_mask=np.zeros(len(masked), np.float32))
        assert not estimator(none_live)["advantages"].any()

    def test_order_of_rows_does_not_matter(self, estimator: AdvantageEstimator) -> None:
        """Groups are found by id, never by position."""
        batch = self.batch()
        order = np.random.default_rng(1).permutation(len(batch))
        expected, shuffled = estimator(batch), estimator(batch.select(order))
        back = shuffled.select(np.argsort(shuffled["row"]))
        expected = expected.select(np.argsort(expected["row"]))
        assert np.array_equal(back["row"], expected["row"])
        np.testing.assert_allclose(back["advantages"], expected["advantages"], rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("reward", [0.0, 1.0, -1.0, 0.1, 1e6])
    def test_equal_rewards(self, estimator: AdvantageEstimator, reward: float) -> None:
        """Finite; nothing can be learnt from a group without spread, so one that compares groups gives exactly 0."""
        batch = self.batch()
        rewards: NDArray[Any] = np.full(len(batch), reward, np.float32)
        columns = {name: rewards for name in batch.sample_columns if name.partition("/")[0] == "reward"}
        advantages = estimator(batch.with_samples(**columns))["advantages"]
        assert np.isfinite(advantages).all()
        if "groups" in self.config().needs():
            assert not advantages.any()

    def test_groups_do_not_touch_each_other(self, estimator: AdvantageEstimator) -> None:
        """An estimator that compares groups gives a group the same advantages alone as among others."""
        if "groups" not in self.config().needs() or self.whole_batch:
            pytest.skip("it does not compare groups, or scales by what all have in common")
        batch = self.batch()
        mine = batch["group"] == batch["group"][0]
        alone, among = estimator(batch.select(mine)), estimator(batch)
        among = among.select(np.isin(among["row"], alone["row"]))
        np.testing.assert_allclose(alone["advantages"], among["advantages"], rtol=1e-5, atol=1e-6)
