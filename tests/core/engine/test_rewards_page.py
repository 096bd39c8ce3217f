"""The examples of docs/rewards.md run and do what the page says."""

import re
from pathlib import Path

import pytest
from rlcore.engine.scoring import Scorer
from rlcore.errors import RewardError
from rlcore.manifest.schema import RewardSection
from rlcore.testing.samples import make_sample

PAGE = (Path(__file__).parents[3] / "docs/rewards.md").read_text(encoding="utf-8")
EXAMPLES = [block for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S) if "@hookimpl" in block]


@pytest.fixture
def score(tmp_path):
    def run(number, sample, **options):
        path = tmp_path / "my_reward.py"
        path.write_text(EXAMPLES[number])
        scorer = Scorer({"mine": RewardSection(use=str(path), options=options)})
        (scored,) = scorer.score([sample])
        scorer.close()
        return scored

    return run


def test_seven_lines(score):
    assert score(0, make_sample("two words"), max_words=2).reward == 1.0


def test_too_many_words(score):
    assert score(0, make_sample("two words"), max_words=1).reward == 0.0


def test_mapping(score):
    scored = score(1, make_sample("2/4", "1/2"))
    assert (scored.reward, dict(scored.metrics), dict(scored.answers)) == (1.0, {"mine/parsed": 1.0}, {"mine": "1/2"})


def test_mapping_without_answer(score):
    scored = score(1, make_sample("half", "1/2"))
    assert (scored.reward, dict(scored.metrics), dict(scored.answers)) == (0.0, {"mine/parsed": 0.0}, {})


def test_async(score):
    assert score(2, make_sample("anything")).reward == 1.0


def test_batch(score):
    assert score(3, make_sample("four")).reward == 4.0


def test_every_example_is_tested():
    assert len(EXAMPLES) == 4


def test_the_error_is_the_one_shown():
    shown = re.search(r"^```text\n(.*?)^```", PAGE, re.M | re.S)[1]
    response = "Natalia sold 48/2 = 24 clips in May.\n#### 72"
    sample = make_sample(response, "72", index=3, location="train.parquet row 17")
    scorer = Scorer({"brief": RewardSection(use="./my_reward.py")}, load=lambda ref, context: lambda sample: None)
    with pytest.raises(RewardError) as caught:
        scorer.score([sample])
    assert str(caught.value) == shown.rstrip("\n")
