import json
import time
from pathlib import Path
from typing import ClassVar

import pytest
from rlcore.engine.scoring import Scorer
from rlcore.errors import PluginError, RewardError
from rlcore.manifest.schema import RewardSection
from rlcore.plugins.config import PluginRef
from rlcore.plugins.loading import build
from rlcore.testing.contracts import RewardContract
from rlcore.testing.samples import make_sample
from rlcore_gsm8k_rule_reward.plugin import Config, rlcore_reward

GSM8K = Path(__file__).resolve().parents[5] / "shared/data/gsm8k"


def score(response, gold, mode="strict"):
    return rlcore_reward(Config(mode=mode))(make_sample(response, gold))["score"]


class TestContract(RewardContract):
    plugin = "gsm8k-rule-reward"
    samples = (make_sample("9 * 2 = 18\n#### 18", "18"), make_sample("#### 3", "18"), make_sample("eighteen", 18))


class TestFlexibleContract(TestContract):
    options: ClassVar = {"mode": "flexible"}


@pytest.mark.parametrize(
    ("response", "gold", "strict", "flexible"),
    [
        # what comes after the answer can't push it out of a window, nor cut it
        ("#### 42\n" + "x" * 400, "42", 1, 1),
        ("#### 51234" + "x" * 297, "34", 0, 0),
        # notation
        ("#### $1,234.00.", "1234", 1, 1),
        ("#### 72.", "72", 1, 1),
        ("#### 72.0", "72", 1, 1),
        ("#### $72", "72", 1, 1),
        ("####72", "72", 1, 1),
        ("####\n72", "72", 1, 1),
        ("#### 1,234", "1234", 1, 1),
        ("#### 114200", "114,200", 1, 1),
        ("#### 114,200", 114200, 1, 1),
        ("#### 50%", "50", 1, 1),
        ("#### 72 eggs", ["72"], 1, 1),
        ("#### **72**", 72.0, 1, 1),
        # the sign counts
        ("#### -3", "-3", 1, 1),
        ("#### -3", "3", 0, 0),
        ("#### 3", "-3", 0, 0),
        ("#### -$50", "-50", 1, 1),
        ("#### \u22125", "-5", 1, 1),
        # the last marker decides
        ("#### 18\n\nQuestion: 2 + 2?\n#### 4", "18", 0, 0),
        ("#### 18\n\nQuestion: 2 + 2?\n#### 4", "4", 1, 1),
        ("#### 5\nNo: #### 72", "72", 1, 1),
        ("#### 72 ####", "72", 0, 1),
        # then the first number after it, or the last number of all
        ("#### 72, not 71", "72", 1, 0),
        ("#### 72, not 71", "71", 0, 1),
        ("The answer is 72.", "72", 0, 1),
        (r"so \boxed{72}.", "72", 0, 1),
        ("3,1415x926", "926", 0, 1),
        ("3,1415x926", "31415926", 0, 0),
        ("#### 1,8", "8", 0, 1),
        ("#### 1,8", "18", 0, 0),
        # no answer
        ("", "0", 0, 0),
        ("####", "0", 0, 0),
        ("a, b.", "0", 0, 0),
        # exact
        ("#### 9007199254740992", "9007199254740993", 0, 0),
        ("#### 9007199254740993", 9007199254740993, 1, 1),
        ("#### 0.1", 0.1, 1, 1),
        ("#### 0.30000000000000004", 0.3, 0, 0),
    ],
)
def test_score(response, gold, strict, flexible):
    assert score(response, gold, "strict") == strict
    assert score(response, gold, "flexible") == flexible


@pytest.mark.parametrize("mode", ["strict", "flexible"])
def test_thousands_of_digits_are_wrong_at_once(mode):
    start = time.perf_counter()
    assert score("#### " + "9" * 5000, 18, mode) == 0
    assert score("9" * 1_000_000, 18, mode) == 0
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize("mode", ["strict", "flexible"])
def test_real_solutions(mode):
    if not GSM8K.is_dir():
        pytest.skip(f"{GSM8K} is not there")
    reward = rlcore_reward(Config(mode=mode))
    files = [GSM8K / f"{split}.jsonl" for split in ("train", "test")]
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").split("\n") if line]
    golds = [row["answer"].split("\n#### ")[1] for row in rows]
    assert len(rows) == 7473 + 1319
    for row, gold, other in zip(rows, golds, golds[1:] + golds[:1], strict=True):
        assert reward(make_sample(row["answer"], gold))["score"] == 1.0, (row["answer"], gold)
        # the golds are integers, so their values are equal just where int() says so
        equal = int(gold.replace(",", "")) == int(other.replace(",", ""))
        assert reward(make_sample(row["answer"], other))["score"] == float(equal), (row["answer"], other)


def test_tells_the_answer_it_found():
    reward = rlcore_reward(Config())
    assert reward(make_sample("#### $1,800.00", "18")) == {"score": 0.0, "answer": "1800"}
    assert reward(make_sample("I don't know", "18")) == {"score": 0.0}


def test_a_ground_truth_that_is_no_number_names_itself_and_its_row():
    scorer = Scorer({"correct": RewardSection(use="gsm8k-rule-reward")})
    with pytest.raises(RewardError, match="ground truth 'eighteen' is not a number") as caught:
        scorer.score([make_sample("#### 18", "eighteen", location="train.parquet row 17")])
    assert "train.parquet row 17" in str(caught.value)
    assert "reward 'correct' (gsm8k-rule-reward)" in str(caught.value)


def test_unknown_mode_lists_the_modes():
    with pytest.raises(PluginError, match="'strict' or 'flexible'"):
        build(PluginRef("reward", "gsm8k-rule-reward", {"mode": "loose"}))
