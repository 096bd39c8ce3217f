"""``gsm8k-rule-reward``: 1.0 if the final number of a response equals the ground truth, else 0.0."""

from __future__ import annotations

from typing import Literal

from rlcore import PluginConfig, Reward, Sample, hookimpl
from rlcore.errors import RewardError

from rlcore_gsm8k_rule_reward.numbers import first_number, last_number, number


class Config(PluginConfig):
    """Score 1.0 if the final number of a response equals the ground truth, else 0.0."""

    mode: Literal["strict", "flexible"] = "strict"
    """What counts as final: the first number after the last ``####`` (strict), or the last number (flexible)."""


@hookimpl
def rlcore_reward(config: Config) -> Reward:
    """The reward, with the answer that it found for majority votes."""
    find = _marked_number if config.mode == "strict" else last_number

    def score(sample: Sample) -> dict[str, float | str]:
        gold = number(sample.ground_truth)
        if gold is None:
            raise RewardError(
                f"the ground truth {sample.ground_truth!r} is not a number; gsm8k-rule-reward takes a number or text "
                "that holds just one, such as 18, '18', '$1,234.50' or ['18']"
            )
        answer = find(sample.response)
        return {"score": 0.0} if answer is None else {"score": float(answer == gold), "answer": answer}

    return score


def _marked_number(text: str) -> str | None:
    _, marker, answer = text.rpartition("####")
    return first_number(answer) if marker else None
