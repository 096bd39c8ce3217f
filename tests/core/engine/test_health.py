import json
import math
import re
from pathlib import Path

import pytest
from rlcore.engine.health import HealthChecks

HEALTHY = {
    "reward/mean": 0.4,
    "group/zero_spread_fraction": 0.94,
    "policy/loss": 0.01,
    "policy/grad_norm": 1.0,
    "policy/entropy": 0.5,
    "policy/clip_fraction": 0.5,
    "policy/kl_to_reference": 1.0,
    "response/truncated_fraction": 0.5,
    "rollout/logprob_difference_max": 0.6,
}


def test_a_healthy_run_and_one_without_metrics_are_silent() -> None:
    checks = HealthChecks()
    assert checks.check(1, HEALTHY) == []
    assert checks.check(2, {}) == []


@pytest.mark.parametrize(
    ("metric", "value", "said"),
    [
        (
            "group/zero_spread_fraction",
            0.95,
            r"in 95% of the groups every sample got the same reward \(mean reward 0\.4\)",
        ),
        ("policy/kl_to_reference", 1.01, "1.01 nats per token from the reference"),
        ("policy/kl_to_reference", -0.11, "-0.11, which no KL can be"),
        ("policy/clip_fraction", 0.51, "51% of the tokens are clipped"),
        ("response/truncated_fraction", 0.51, "51% of the responses were cut off"),
        ("rollout/logprob_difference_max", 0.61, "up to 0.61 nats apart"),
        ("policy/loss", math.nan, "policy/loss is nan: numbers have overflowed"),
        ("policy/grad_norm", math.inf, "policy/grad_norm is inf"),
    ],
)
def test_each_limit_speaks_alone_with_what_to_try(metric: str, value: float, said: str) -> None:
    (sentence,) = HealthChecks().check(1, HEALTHY | {metric: value})
    assert re.search(said, sentence)
    assert any(advice in sentence.lower() for advice in ("try", "look at", "prompts", "checkpoint"))


def test_entropy_is_compared_with_its_start() -> None:
    checks = HealthChecks()
    assert checks.check(1, {"policy/entropy": 2.0}) == []
    assert checks.check(2, {"policy/entropy": 0.2}) == []
    (sentence,) = checks.check(3, {"policy/entropy": 0.19})
    assert sentence.startswith("entropy has collapsed from 2 to 0.19 nats per token")


def test_the_limit_for_log_probs_can_be_set() -> None:
    assert len(HealthChecks(logprob_limit=0.01).check(1, {"rollout/logprob_difference_max": 0.02})) == 1
    assert len(HealthChecks().check(1, {"rollout/logprob_difference_max": math.nan})) == 1


def flat(checks: HealthChecks, rewards: list[float]) -> list[int]:
    return [step for step, reward in enumerate(rewards, 1) if checks.check(step, {"reward/mean": reward})]


def test_a_flat_reward_is_told_after_a_whole_window() -> None:
    noise = [0.5 + 0.1 * (-1) ** i for i in range(150)]
    assert flat(HealthChecks(), noise) == [100, 150]  # and again 50 steps later


def test_a_rising_reward_is_not_flat_even_under_noise() -> None:
    # Halves differ by 0.1; the standard error is about sqrt(2 * 0.0108 / 50) = 0.021, a fifth of it.
    assert flat(HealthChecks(), [0.002 * i + 0.1 * (-1) ** i for i in range(200)]) == []


def test_each_check_speaks_once_in_so_many_steps() -> None:
    checks = HealthChecks(every_steps=10)
    clipped = {"policy/clip_fraction": 0.9}
    assert [step for step in range(1, 32) if checks.check(step, clipped)] == [1, 11, 21, 31]
    assert len(checks.check(32, clipped | {"response/truncated_fraction": 0.9})) == 1


def test_a_resumed_run_says_what_the_run_that_never_stopped_says() -> None:
    metrics = [
        {"reward/mean": 0.3 + 0.1 * (step % 3), "policy/entropy": 1.0 / (step + 1), "policy/clip_fraction": 0.6}
        for step in range(160)
    ]
    straight = HealthChecks()
    expected = [straight.check(step, m) for step, m in enumerate(metrics)]
    assert sum(map(len, expected)) > 5
    for stop in (1, 60, 120):
        first, second = HealthChecks(), HealthChecks()
        said = [first.check(step, m) for step, m in enumerate(metrics[:stop])]
        second.restore(json.loads(json.dumps(first.state())))
        said += [second.check(step, m) for step, m in enumerate(metrics[stop:], stop)]
        assert said == expected
        assert second.state() == straight.state()


def test_every_check_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "health.md").read_text()
    assert [name for name in HealthChecks()._checks if f"| `{name}` |" not in text] == []
