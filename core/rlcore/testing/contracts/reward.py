"""What a reward must do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import pytest

from rlcore.data.sample import Sample
from rlcore.engine.scoring import Scorer
from rlcore.manifest.schema import RewardSection
from rlcore.plugins.kinds import Kind
from rlcore.testing.contracts.plugin import PluginContract

ODD_RESPONSES = {
    "empty": "",
    "spaces": " \t\r\n\u00a0\u3000",
    "nul": "\x00\x1b[31m",
    "lone surrogate": "\ud800",
    "combining": "e\u0301" * 100,
    "right to left": "\u202e\u0634\u0643\u0631\u0627 42",
    "other digits": "\u0664\u0662 \uff14\uff12 \u2167 \u00bd",
    "emoji": "👩‍👩‍👧‍👦" * 50,
    "many digits": "9" * 10_000,
    "long line": "x" * 300_000,
    "brackets": "(" * 10_000 + r"\frac{" * 10_000,
    "percent": "%s %d {0} {} $(x) \\",
}
"""What models write sooner or later."""


class RewardContract(PluginContract):
    """Subclass with ``plugin`` and ``samples``; see ``rlcore.testing.samples.make_sample``."""

    kind: ClassVar[Kind] = "reward"
    samples: ClassVar[Sequence[Sample]]
    """Samples with ground truths of the kind that the reward is for; right, wrong and useless answers."""
    deterministic: ClassVar[bool] = True
    """Whether a sample has the same score each time (a judge that samples does not)."""

    @pytest.fixture
    def scorer(self) -> Iterator[Scorer]:
        """The reward as a run builds it."""
        scorer = self._make_scorer()
        yield scorer
        scorer.close()

    def test_scores_are_finite(self, scorer: Scorer) -> None:
        """One finite number for each sample."""
        scored = scorer.score(self.samples)
        assert len(scored) == len(self.samples) > 0
        assert all(math.isfinite(sample.reward) for sample in scored)

    def test_scores_repeat(self, scorer: Scorer) -> None:
        """The same scores again, in another order, alone, and by another object."""
        if not self.deterministic:
            pytest.skip("deterministic = False")
        scores = [sample.reward for sample in scorer.score(self.samples)]
        assert [sample.reward for sample in reversed(scorer.score(self.samples[::-1]))] == scores
        assert [scorer.score([sample])[0].reward for sample in self.samples] == scores
        other = self._make_scorer()
        assert [sample.reward for sample in other.score(self.samples)] == scores
        other.close()

    def test_samples_are_left_alone(self, scorer: Scorer) -> None:
        """A reward changes nothing of what it is given."""
        before = [repr(sample) for sample in self.samples]
        scorer.score(self.samples)
        assert [repr(sample) for sample in self.samples] == before

    @pytest.mark.parametrize("response", ODD_RESPONSES.values(), ids=ODD_RESPONSES.keys())
    def test_odd_responses_are_scored(self, scorer: Scorer, response: str) -> None:
        """Whatever a model writes has a score."""
        (scored,) = scorer.score([replace(self.samples[0], response=response)])
        assert math.isfinite(scored.reward)

    def _make_scorer(self) -> Scorer:
        return Scorer({"reward": RewardSection(use=self.plugin, options=dict(self.options))})
