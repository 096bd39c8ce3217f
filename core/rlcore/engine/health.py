"""What a curve means, in words, and what to try: checks on the metrics of each step.

They only read and speak; they never change a run. docs/health.md lists them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import fmean, variance
from typing import Any

ZERO_SPREAD_LIMIT = 0.95
"""Above this fraction of groups without spread, a step learns from almost nothing."""
KL_LIMIT = 1.0
"""Nats per token. Runs that keep their language stay well under 0.1; at 1.0 the model is another one."""
KL_NEGATIVE_LIMIT = -0.1
"""A KL divergence is never negative; an estimate from samples so far below 0 is one of other samples."""
ENTROPY_FRACTION = 0.1
"""Of the entropy at the start. Below it the samples of a group are nearly one text, and rewards have no spread left."""
CLIP_LIMIT = 0.5
"""Fraction of tokens; usual values are under 0.05."""
TRUNCATED_LIMIT = 0.5
"""Fraction of responses that never got to their end, and so to their answer."""
LOGPROB_LIMITS = {"float32": 0.01, "bfloat16": 0.6}
"""Nats at one token, by ``model.dtype``: float32 gives under 1e-3, bfloat16 with other kernels up to about 0.5."""
FLAT_WINDOW = 100
"""Steps over which the reward must have moved; its halves are compared."""

Check = Callable[[Mapping[str, float]], str | None]


class HealthChecks:
    """Reads the metrics of each step and says what is wrong; each check speaks at most once in ``every_steps``.

    ``logprob_limit`` is the difference between engine and trainer that is still noise: one of ``LOGPROB_LIMITS``.
    """

    def __init__(self, every_steps: int = 50, logprob_limit: float = LOGPROB_LIMITS["bfloat16"]) -> None:
        self.every_steps = every_steps
        self.logprob_limit = logprob_limit
        self._spoke: dict[str, int] = {}
        self._entropy_start: float | None = None
        self._rewards: list[float] = []
        self._checks: Mapping[str, Check] = {
            "not finite": _not_finite,
            "no spread": _no_spread,
            "kl": _kl,
            "entropy": self._entropy,
            "clip": _clip,
            "truncated": _truncated,
            "log-probs": self._logprobs,
            "flat reward": self._flat_reward,
        }

    def check(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        """Sentences on what is wrong at this step. Checks whose metrics are missing say nothing."""
        said = []
        for name, check in self._checks.items():
            sentence = check(metrics)
            due = name not in self._spoke or step - self._spoke[name] >= self.every_steps
            if sentence and due:
                self._spoke[name] = step
                said.append(sentence)
        return said

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as plain values."""
        return {"spoke": dict(self._spoke), "entropy_start": self._entropy_start, "rewards": list(self._rewards)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` gave."""
        self._spoke = dict(state["spoke"])
        self._entropy_start = state["entropy_start"]
        self._rewards = list(state["rewards"])

    def _entropy(self, metrics: Mapping[str, float]) -> str | None:
        entropy = metrics.get("policy/entropy", math.nan)
        if not math.isfinite(entropy):
            return None
        if self._entropy_start is None:
            self._entropy_start = entropy
        if entropy >= ENTROPY_FRACTION * self._entropy_start:
            return None
        return (
            f"entropy has collapsed from {self._entropy_start:.3g} to {entropy:.3g} nats per token: the samples of a "
            "prompt are nearly the same text, and soon nothing is left to compare. Try a lower learning rate, "
            "a larger algorithm.loss.clip_high, an algorithm.entropy_coef, or a KL term"
        )

    def _logprobs(self, metrics: Mapping[str, float]) -> str | None:
        difference = metrics.get("rollout/logprob_difference_max", 0.0)
        if difference <= self.logprob_limit:  # NaN is not
            return None
        return (
            f"log-probs of the rollout engine and the trainer are up to {difference:.3g} nats apart: samples are not "
            "from the model that is trained. Weights may not have arrived, or temperature, dtype or kernels differ; "
            "try model.dtype: float32 on a small run to tell noise from a mistake"
        )

    def _flat_reward(self, metrics: Mapping[str, float]) -> str | None:
        reward = metrics.get("reward/mean", math.nan)
        if not math.isfinite(reward):
            return None
        self._rewards = [*self._rewards[-(FLAT_WINDOW - 1) :], reward]
        if len(self._rewards) < FLAT_WINDOW:
            return None
        half = FLAT_WINDOW // 2
        before, after = self._rewards[:half], self._rewards[half:]
        noise = math.sqrt((variance(before) + variance(after)) / half)  # standard error of the difference of the means
        change = fmean(after) - fmean(before)
        if abs(change) > 2 * noise:
            return None
        return (
            f"the reward has been flat for {FLAT_WINDOW} steps: {fmean(before):.3g}, then {fmean(after):.3g}, no more "
            "than its noise. Near the best possible value the run is done; otherwise try a higher learning rate, "
            "more samples per prompt, or prompts that are right some of the time"
        )


def _not_finite(metrics: Mapping[str, float]) -> str | None:
    watched = ("policy/loss", "policy/grad_norm", "policy/kl_to_reference", "policy/entropy", "reward/mean")
    bad = [f"{name} is {metrics[name]}" for name in watched if name in metrics and not math.isfinite(metrics[name])]
    if not bad:
        return None
    return (
        f"{' and '.join(bad)}: numbers have overflowed or were undefined from the start, and every step from here on "
        "is suspect. Go back to the last checkpoint with a lower learning rate; if it is so at the first step, "
        "look at the rewards and try model.dtype: float32"
    )


def _no_spread(metrics: Mapping[str, float]) -> str | None:
    fraction = metrics.get("group/zero_spread_fraction", 0.0)
    if not fraction >= ZERO_SPREAD_LIMIT:
        return None
    reward = f" (mean reward {metrics['reward/mean']:.3g})" if "reward/mean" in metrics else ""
    return (
        f"in {fraction:.0%} of the groups every sample got the same reward{reward}, so there is nothing to learn from "
        "them. If all are wrong: easier prompts, supervised warm-up, or a look at what the reward expects; "
        "if all are right: harder prompts; else more samples per prompt or a higher temperature"
    )


def _kl(metrics: Mapping[str, float]) -> str | None:
    kl = metrics.get("policy/kl_to_reference", 0.0)
    if kl > KL_LIMIT:
        return (
            f"the policy is {kl:.3g} nats per token from the reference: it has left the language it started with, "
            "often for a text that only pleases the reward. Read some samples; try a larger algorithm.kl.coef "
            "or a lower learning rate"
        )
    if kl < KL_NEGATIVE_LIMIT:
        return (
            f"KL to the reference is estimated as {kl:.3g}, which no KL can be: the samples are not from the policy "
            "that is scored. Look at rollout/logprob_difference_max, and at top_p and top_k, which cut the "
            "distribution that is sampled from"
        )
    return None


def _clip(metrics: Mapping[str, float]) -> str | None:
    fraction = metrics.get("policy/clip_fraction", 0.0)
    if not fraction > CLIP_LIMIT:
        return None
    return (
        f"{fraction:.0%} of the tokens are clipped and don't train: the policy moves too far within one step. Try a "
        "lower learning rate, fewer updates per step (larger trainer.prompts_per_update, fewer epochs_per_batch), "
        "or a wider clip range"
    )


def _truncated(metrics: Mapping[str, float]) -> str | None:
    fraction = metrics.get("response/truncated_fraction", 0.0)
    if not fraction > TRUNCATED_LIMIT:
        return None
    return (
        f"{fraction:.0%} of the responses were cut off at the token limit before they ended, and mostly before they "
        "answered. Try a larger data.max_response_tokens, a stop text, or a prompt that asks for less; "
        "a model that never stops may lack its end token"
    )
