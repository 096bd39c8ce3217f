import asyncio
import pickle
import time

import numpy as np
import pytest
from rlcore.engine.scoring import Scorer
from rlcore.errors import RewardError
from rlcore.manifest.schema import RewardSection
from rlcore.testing.samples import make_sample


@pytest.fixture
def scorer_of():
    """Makes a scorer of rewards given as functions; ``weights`` by name."""
    made = []

    def make(weights=None, **rewards):
        sections = {
            name: RewardSection(use=f"plugin-{name}", weight=(weights or {}).get(name, 1.0)) for name in rewards
        }
        made.append(Scorer(sections, load=lambda ref, context: rewards[context.name]))
        return made[-1]

    yield make
    for scorer in made:
        scorer.close()


def samples(*responses):
    return [make_sample(text, index=i, location=f"train.parquet row {i}") for i, text in enumerate(responses)]


class Batched:
    def __init__(self, function):
        self.score_batch = function


def test_each_reward_is_built_once_from_its_section():
    built = []

    def load(ref, context):
        built.append((ref.kind, ref.name, dict(ref.options), context.name))
        return lambda sample: 0.0

    Scorer({"a": RewardSection(use="x", options={"n": 1}), "b": RewardSection(use="y")}, load).score(samples("", ""))
    assert built == [("reward", "x", {"n": 1}, "a"), ("reward", "y", {}, "b")]


def test_weighted_sum_of_several_rewards(scorer_of):
    scorer = scorer_of(
        weights={"length": 0.5, "bad": -2.0},
        length=lambda sample: len(sample.response),
        bad=lambda sample: "bad" in sample.response,
    )
    first, second = scorer.score(samples("good", "bad"))
    assert (first.reward, dict(first.rewards)) == (2.0, {"length": 4.0, "bad": 0.0})
    assert (second.reward, dict(second.rewards)) == (0.5 * 3 - 2.0, {"length": 3.0, "bad": 1.0})
    assert list(first.rewards) == ["length", "bad"]
    assert type(second.rewards["bad"]) is float


@pytest.mark.parametrize(
    "number", [1, 1.0, True, np.float32(1), np.float64(1), np.int64(1), np.bool_(True)], ids=lambda n: type(n).__name__
)
def test_any_number_is_a_score(scorer_of, number):
    (scored,) = scorer_of(r=lambda sample: number).score(samples("x"))
    assert scored.reward == 1.0
    assert type(scored.reward) is float


def test_mapping_with_further_numbers_on_some_samples_only(scorer_of):
    results = [{"score": 1, "acc": 1}, 0.0, {"score": 0, "fmt": np.bool_(True), "answer": "7"}]
    scored = scorer_of(r=lambda sample: results[sample.index]).score(samples("a", "b", "c"))
    assert [s.reward for s in scored] == [1, 0, 0]
    assert [dict(s.metrics) for s in scored] == [{"r/acc": 1.0}, {}, {"r/fmt": 1.0}]
    assert [dict(s.answers) for s in scored] == [{}, {}, {"r": "7"}]


def test_score_batch_gets_all_samples_at_once(scorer_of):
    seen = []

    def score_batch(given):
        seen.append([s.response for s in given])
        return np.arange(len(given))

    scored = scorer_of(r=Batched(score_batch)).score(samples("a", "b", "c"))
    assert seen == [["a", "b", "c"]]
    assert [s.reward for s in scored] == [0.0, 1.0, 2.0]


def test_async_rewards_wait_together_on_one_loop(scorer_of):
    loops, waiting, most = set(), 0, 0

    async def slow(sample):
        nonlocal waiting, most
        loops.add(asyncio.get_running_loop())
        waiting += 1
        most = max(most, waiting)
        await asyncio.sleep(0.01)
        waiting -= 1
        return float(sample.response)

    scorer = scorer_of(a=slow, b=slow, c=lambda sample: 100.0)
    assert [s.reward for s in scorer.score(samples("1", "2", "3"))] == [102.0, 104.0, 106.0]
    assert [s.reward for s in scorer.score(samples("4"))] == [108.0]
    assert most == 6
    assert len(loops) == 1


def test_no_samples(scorer_of):
    assert scorer_of(r=Batched(lambda given: 1 / 0)).score([]) == []


def test_samples_given_are_left_alone(scorer_of):
    given = samples("x")
    scorer_of(r=lambda sample: 1.0).score(given)
    assert np.isnan(given[0].reward)
    assert not given[0].rewards


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (float("nan"), "returned nan; it must return a finite number"),
        (float("inf"), "returned inf"),
        (np.float32("nan"), r"returned np.float32\(nan\)"),
        pytest.param(10**400, "returned 1000", id="huge"),
        (None, "returned None"),
        ("1", "returned '1'"),
        ([1.0], r"returned \[1.0\]"),
        (1j, "returned 1j"),
        ({"acc": 1.0, "fmt": 0.0}, "a mapping without 'score', with the keys 'acc', 'fmt'"),
        ({}, "without 'score', with the keys none"),
        ({"score": None}, r"returned \{'score': None\}"),
        ({"score": 1.0, "acc": "yes"}, r"returned \{.*'acc': 'yes'"),
        ({"score": 1.0, "acc": float("nan")}, "'acc': nan"),
        ({"score": 1.0, "answer": 7}, "returned 7 as 'answer', which is no text"),
    ],
)
def test_what_is_no_score(scorer_of, returned, said):
    scorer = scorer_of(good=lambda sample: 1.0, r=lambda sample: returned if sample.index == 1 else 0.0)
    with pytest.raises(RewardError, match=said) as caught:
        scorer.score(samples("first", "second"))
    message = str(caught.value)
    assert message.startswith("reward 'r' (plugin-r) returned ")
    assert "train.parquet row 1, sample 1" in message
    assert "response: 'second'" in message


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ([1.0], "returned 1 values from score_batch for 2 samples"),
        ([1.0, 2.0, 3.0], "returned 3 values from score_batch for 2 samples"),
        (None, "returned None from score_batch; it must return a list"),
        (1.0, "returned 1.0 from score_batch"),
        ("10", "returned '10' from score_batch"),
        ([1.0, None], "returned None; it must return a finite number"),
    ],
)
def test_what_is_no_batch_of_scores(scorer_of, returned, said):
    with pytest.raises(RewardError, match=said) as caught:
        scorer_of(r=Batched(lambda given: returned)).score(samples("first", "second"))
    assert "response: '" in str(caught.value)


def raises(sample):
    if sample.index == 1:
        raise KeyError("label")
    return 0.0


async def raises_async(sample):
    return raises(sample)


@pytest.mark.parametrize("function", [raises, raises_async])
def test_exception_is_chained_and_shows_the_sample(scorer_of, function):
    with pytest.raises(RewardError, match=r"reward 'r' .* raised KeyError: 'label'") as caught:
        scorer_of(r=function).score(samples("first", "second"))
    assert isinstance(caught.value.__cause__, KeyError)
    assert "train.parquet row 1, sample 1" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_exception_of_a_batch_shows_the_first_sample(scorer_of):
    with pytest.raises(RewardError, match="raised ZeroDivisionError") as caught:
        scorer_of(r=Batched(lambda given: 1 / 0)).score(samples("first", "second"))
    assert "train.parquet row 0" in str(caught.value)


def test_an_async_failure_calls_off_the_others_and_the_scorer_goes_on(scorer_of):
    ended = []

    async def reward(sample):
        if sample.response == "bad":
            raise ValueError("no")
        try:
            await asyncio.sleep(60 if sample.response == "slow" else 0)
        finally:
            ended.append(sample.response)
        return 1.0

    scorer = scorer_of(r=reward)
    start = time.perf_counter()
    with pytest.raises(RewardError, match="ValueError: no"):
        scorer.score(samples("slow", "bad"))
    assert time.perf_counter() - start < 10
    assert ended == ["slow"]
    assert [s.reward for s in scorer.score(samples("quick"))] == [1.0]


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_sync_failure_leaves_no_coroutine_behind(scorer_of):
    async def pending(sample):
        return 1.0

    with pytest.raises(RewardError, match="KeyError"):
        scorer_of(a=pending, b=raises).score(samples("first", "second"))


def test_a_long_response_shows_both_ends(scorer_of):
    text = "begin" + "x" * 10_000 + "#### 18"
    with pytest.raises(RewardError) as caught:
        scorer_of(r=lambda sample: None).score(samples(text))
    message = str(caught.value)
    assert len(message) < 1000
    assert "'begin" in message
    assert "#### 18'" in message
    assert "[…9612 characters…]" in message


def test_a_reward_that_leaves_the_process_is_an_error() -> None:
    def leave(sample: object) -> float:
        raise SystemExit(3)

    scorer = Scorer({"exit": RewardSection(use="exit")}, load=lambda ref, context: leave)
    with pytest.raises(RewardError, match=r"reward 'exit' \(exit\) raised SystemExit: 3"):
        scorer.score([make_sample("x")])
