from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlcore.data.sample import Group
from rlcore.engine.accuracy import evaluation_metrics, maj_at_k, pass_at_k
from rlcore.errors import DataError
from rlcore.testing.samples import make_sample


def test_one_right_of_four_always_passes_at_four():
    assert pass_at_k(4, 1, 4) == 1.0


@pytest.mark.parametrize(
    ("n", "c", "k", "value"),
    [(4, 0, 4, 0.0), (4, 1, 1, 0.25), (4, 1, 2, 0.5), (4, 2, 2, 5 / 6), (1, 1, 1, 1.0), (5, 3, 3, 1.0)],
)
def test_pass_at_k_by_hand(n, c, k, value):
    assert pass_at_k(n, c, k) == pytest.approx(value, rel=1e-15)


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(case):
    n, c, k = case
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == float(Fraction(sum(map(any, subsets)), len(subsets)))


def test_pass_at_k_of_many_samples_does_not_overflow():
    # 1 − Π (1 − k/(n − i)), another form of the same formula
    product = 1.0
    for i in range(50):
        product *= 1 - 100 / (10_000 - i)
    assert pass_at_k(10_000, 50, 100) == pytest.approx(1 - product, rel=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 5), (4, 1, 0), (0, 0, 1)])
def test_pass_at_k_refuses(n, c, k):
    with pytest.raises(DataError, match=f"pass@{k} of {n} samples, {c} of them right"):
        pass_at_k(n, c, k)


@pytest.mark.parametrize(
    ("answers", "right", "k", "value"),
    [
        (["7", "8", "7", "9"], [1, 0, 1, 0], 4, 1.0),
        (["7", "8", "8", "9"], [1, 0, 0, 0], 4, 0.0),
        # it votes on answers and not on verdicts: three different wrong answers don't outvote two right ones
        (["7", "7", "1", "2", "3"], [1, 1, 0, 0, 0], 5, 1.0),
        # a tie gives the mean of those that lead, whatever their order
        (["7", "8"], [1, 0], 2, 0.5),
        (["8", "7"], [0, 1], 2, 0.5),
        (["7", "7", "8", "8", "9"], [1, 1, 0, 0, 0], 5, 0.5),
        (["1", "2", "3", "7"], [0, 0, 0, 1], 4, 0.25),
        # no answer, no vote
        ([None, None, None, "7"], [0, 0, 0, 1], 4, 1.0),
        ([None, None], [0, 0], 2, 0.0),
        # an answer that some of its voters spoilt
        (["7", "7", "8"], [1, 0, 0], 3, 0.5),
        # blocks of k
        (["7", "8", "8", "7", "7"], [1, 0, 0, 1, 1], 1, 0.6),
        (["7", "7", "8", "8"], [1, 1, 0, 0], 2, 0.5),
        (["7", "7", "8", "8", "7"], [1, 1, 0, 0, 1], 3, 1.0),
    ],
)
def test_maj_at_k(answers, right, k, value):
    assert maj_at_k(answers, list(map(bool, right)), k) == pytest.approx(value)


@pytest.mark.parametrize(
    ("answers", "right", "k"), [([], [], 1), (["7"], [True], 2), (["7"], [True], 0), (["7"], [], 1)]
)
def test_maj_at_k_refuses(answers, right, k):
    with pytest.raises(DataError, match=f"maj@{k} of {len(answers)} answers"):
        maj_at_k(answers, right, k)


def group(*scores, source="", answers=None, metrics=None, finish="stop", response="four", more=()):
    """A group whose samples have these scores of the reward ``correct``."""
    samples = []
    for i, value in enumerate(scores):
        given = {"correct": answers[i]} if answers and answers[i] is not None else {}
        sample = make_sample(response, source=source, index=i, finish=finish)
        rewards = {"correct": value} | dict(more)
        samples.append(sample.scored(sum(rewards.values()), rewards, (metrics or [{}] * len(scores))[i], given))
    return Group(0, samples[0].prompt, samples)


def test_every_prompt_counts_the_same():
    # ten prompts, however they were batched: 7 right
    metrics = evaluation_metrics([group(float(i < 7)) for i in range(10)], [1])
    assert metrics == {
        "eval/accuracy": pytest.approx(0.7),
        "eval/reward/mean": pytest.approx(0.7),
        "eval/reward/correct/mean": pytest.approx(0.7),
        "eval/response_tokens_mean": 4.0,
        "eval/truncated_fraction": 0.0,
        "eval/pass@1": pytest.approx(0.7),
    }


def test_groups_of_different_sizes_count_the_same():
    metrics = evaluation_metrics([group(1.0, 1.0, 1.0), group(0.0, finish="length", response="eight888")], [1])
    assert metrics["eval/accuracy"] == metrics["eval/reward/mean"] == metrics["eval/pass@1"] == 0.5
    assert metrics["eval/truncated_fraction"] == 0.5
    assert metrics["eval/response_tokens_mean"] == 6.0


def test_a_graded_reward_is_logged_as_it_is_and_right_above_a_half():
    metrics = evaluation_metrics([group(0.6, 0.5, -1.0, 0.2)], [1])
    assert metrics["eval/reward/mean"] == pytest.approx(0.3 / 4)
    assert metrics["eval/accuracy"] == 0.25


def test_the_first_reward_decides_what_is_right():
    metrics = evaluation_metrics([group(0.0, 1.0, more={"format": 1.0})], [1])
    assert metrics["eval/accuracy"] == 0.5
    assert metrics["eval/reward/mean"] == 1.5
    assert metrics["eval/reward/correct/mean"] == 0.5
    assert metrics["eval/reward/format/mean"] == 1.0


def test_further_numbers_are_averaged_where_they_are():
    metrics = evaluation_metrics(
        [group(1.0, 0.0, metrics=[{"correct/n": 2.0}, {}]), group(1.0), group(1.0, metrics=[{"correct/n": 4.0}])], [1]
    )
    assert metrics["eval/reward/correct/n"] == 3.0


def test_pass_and_maj_at_several_k():
    groups = [group(1.0, 0.0, 0.0, 1.0, answers=["7", "8", "9", "7"]), group(0.0, 0.0, 0.0, 0.0, answers=[None] * 4)]
    metrics = evaluation_metrics(groups, [1, 2, 4])
    assert metrics["eval/pass@1"] == 0.25
    assert metrics["eval/pass@2"] == pytest.approx(5 / 12)
    assert metrics["eval/pass@4"] == 0.5
    assert metrics["eval/maj@1"] == 0.25
    assert metrics["eval/maj@2"] == 0.25  # {7, 8} and {9, 7} are ties; the other prompt has no votes
    assert metrics["eval/maj@4"] == 0.5


def test_sources_apart_if_there_are_several():
    metrics = evaluation_metrics([group(1.0, source="a/b"), group(0.0, source="a/b"), group(1.0)], [1])
    assert metrics["eval/accuracy"] == pytest.approx(2 / 3)
    assert metrics["eval/a/b/accuracy"] == metrics["eval/a/b/pass@1"] == 0.5
    assert metrics["eval/unnamed/accuracy"] == 1.0
    assert not any("a/b" in name for name in evaluation_metrics([group(1.0, source="a/b")], [1]))


def test_refuses_what_it_cannot_average():
    with pytest.raises(DataError, match="at least one prompt"):
        evaluation_metrics([], [1])
    with pytest.raises(DataError, match="at least one prompt, and one sample of each"):
        evaluation_metrics([Group(0, make_sample("").prompt, [])], [1])
    with pytest.raises(DataError, match="pass@2 of 1 samples"):
        evaluation_metrics([group(1.0)], [2])
