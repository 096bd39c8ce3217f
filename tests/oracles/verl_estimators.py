"""The same batches through verl's advantage estimators and ours; prints where they differ, and why.

Not a test of the suite: it runs in an environment that has ``verl==0.9.1`` beside rlcore and its algorithms.

    python tests/oracles/verl_estimators.py

It ends with 1 if a difference is not among those that are known, or one that is known is gone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from rlcore import AlgorithmContext, Batch
from rlcore.plugins.config import PluginRef
from rlcore.plugins.loading import build
from verl.trainer.ppo import core_algos as verl

WIDTH = 7  # tokens of a padded response
WEIGHTS = {"a": 1.0, "b": 0.5}
TOLERANCE = 2e-5  # verl computes in float32

Case = dict[str, np.ndarray]


def case(seed: int, groups: list[int], *, gaps: bool = False) -> Case:
    """Random rewards and lengths: ``mask`` [N, WIDTH], ``a``, ``b``, ``greedy`` [N], ``groups`` [N]."""
    rng = np.random.default_rng(seed)
    n = len(groups)
    mask = (np.arange(WIDTH) < rng.integers(1, WIDTH + 1, n)[:, None]).astype(np.float32)
    if gaps:
        mask[:, 1] = 0  # a tool's token after the first generated one
        mask[:, 2] = 1
    a, b, greedy = (rng.random(n).astype(np.float32) for _ in range(3))
    return {"mask": mask, "a": a, "b": b, "greedy": greedy, "groups": np.array(groups)}


def cases() -> dict[str, Case]:
    made = {
        "uneven, interleaved": case(0, [3, 1, 3, 2, 1, 2, 2, 3, 1, 2]),
        "tool gaps": case(1, [1, 2, 1, 2, 1, 2], gaps=True),
        "group of one": case(2, [1, 1, 1, 2]),
        "[0.1] * 7 beside others": case(3, [1] * 7 + [2, 2]),
        "zeros beside others": case(4, [1] * 3 + [2, 2]),
        "masked row": case(5, [1, 1, 2, 2]),
        "one live token": case(6, [1, 1]),
    }
    made["[0.1] * 7 beside others"]["a"][:7] = made["[0.1] * 7 beside others"]["b"][:7] = 0.1
    made["zeros beside others"]["a"][:3] = made["zeros beside others"]["b"][:3] = 0
    made["masked row"]["mask"][3] = 0
    made["one live token"]["mask"][:] = 0
    made["one live token"]["mask"][0, 0] = 1
    return made


def ours(name: str, options: Mapping[str, Any], data: Case) -> np.ndarray:
    n = len(data["groups"])
    batch = Batch.from_sequences([np.zeros(WIDTH, np.int32)] * n).with_tokens(loss_mask=data["mask"].ravel().copy())
    batch = batch.with_samples(
        group=data["groups"].astype(np.int64),
        reward=rewards(name, data).copy(),
        baseline_reward=data["greedy"].copy(),
        **{f"reward/{key}": data[key].copy() for key in WEIGHTS},
    )
    context = AlgorithmContext(2, WIDTH, seed=0, reward_weights=WEIGHTS)
    advantages: np.ndarray = build(PluginRef("algorithm", name, options), context)(batch)["advantages"]
    return advantages.reshape(n, WIDTH)


def rewards(name: str, data: Case) -> np.ndarray:
    return data["a"] + np.float32(0.5) * data["b"] if name == "gdpo" else data["a"]


def at_last(column: np.ndarray, mask: np.ndarray) -> torch.Tensor:
    """The reward at the last live token of a row; of a masked one at its first token."""
    placed = np.zeros_like(mask)
    last = WIDTH - 1 - np.argmax(mask[:, ::-1], axis=1)
    placed[np.arange(len(column)), np.where(mask.any(axis=1), last, 0)] = column
    return torch.tensor(placed)


def theirs(function: Callable[..., Any], name: str, data: Case, **arguments: Any) -> np.ndarray:
    mask = torch.tensor(data["mask"])
    if name == "gdpo":
        arguments |= {
            "config": {"gdpo_reward_keys": list(WEIGHTS), "gdpo_reward_weights": list(WEIGHTS.values())},
            "non_tensor_batch": {key: data[key] for key in WEIGHTS},
            "batch": {"prompts": torch.zeros(len(mask), 0), "attention_mask": torch.ones_like(mask).long()},
        }
    arguments |= {"reward_baselines": torch.tensor(data["greedy"])} if name == "remax" else {}
    if name == "reinforce-plus-plus":
        arguments["config"] = type("Config", (), {"gamma": 0.9})()
    token_rewards = at_last(rewards(name, data), data["mask"])
    advantages, _ = function(token_rewards, response_mask=mask, index=data["groups"], **arguments)
    return np.asarray(advantages)


ESTIMATORS: dict[str, tuple[str, dict[str, Any], Callable[..., Any], dict[str, Any]]] = {
    "grpo": ("grpo", {}, verl.compute_grpo_outcome_advantage, {}),
    "grpo none": (
        "grpo",
        {"normalize": "none"},
        verl.compute_grpo_outcome_advantage,
        {"norm_adv_by_std_in_grpo": False},
    ),
    "grpo pass-at-k": (
        "grpo",
        {"variant": "pass-at-k"},
        verl.compute_grpo_passk_outcome_advantage,
        {"config": {"norm_adv_by_std_in_grpo": True}},
    ),
    "rloo": ("rloo", {}, verl.compute_rloo_outcome_advantage, {}),
    "rloo (vectorized)": ("rloo", {}, verl.compute_rloo_vectorized_outcome_advantage, {}),
    "opo": ("opo", {}, verl.compute_opo_outcome_advantage, {}),
    "gpg": ("gpg", {}, verl.compute_gpg_outcome_advantage, {}),
    "remax": ("remax", {}, verl.compute_remax_outcome_advantage, {}),
    "reinforce-plus-plus": (
        "reinforce-plus-plus",
        {"gamma": 0.9},
        verl.compute_reinforce_plus_plus_outcome_advantage,
        {},
    ),
    "reinforce-plus-plus-baseline": (
        "reinforce-plus-plus-baseline",
        {},
        verl.compute_reinforce_plus_plus_baseline_outcome_advantage,
        {},
    ),
    "gdpo": ("gdpo", {}, verl.compute_gdpo_outcome_advantage, {}),
}

_SINGLE = "a lone sample keeps its raw score there; ours is 0: it has nothing to be compared with"
_RESIDUE = "float32 residue of equal rewards is divided by its own spread there; ours is exactly 0"
_ALPHA = "alpha counts rewards that are not 0 there; ours, as the paper, samples in groups with spread"
_RAISES = "one live token, or none, can't be whitened there; ours is 0"

_SINGLE_ERROR = "a lone sample is an error there; ours is 0"

KNOWN: dict[tuple[str, str], str] = {
    **{(label, "group of one"): _SINGLE for label in ("grpo", "grpo none", "rloo", "opo")},
    **{(label, "group of one"): _SINGLE for label in ("gpg", "reinforce-plus-plus-baseline", "gdpo")},
    ("grpo pass-at-k", "group of one"): _SINGLE_ERROR,
    ("grpo", "[0.1] * 7 beside others"): _RESIDUE,
    ("gdpo", "[0.1] * 7 beside others"): _RESIDUE,
    ("gpg", "[0.1] * 7 beside others"): _ALPHA,
    **{(label, "one live token"): _RAISES for label in ("reinforce-plus-plus", "reinforce-plus-plus-baseline", "gdpo")},
}
"""(estimator, case) to the reason of a difference."""


def compare(label: str, data: Case) -> str:
    """The largest difference at a live token, or what verl raised."""
    name, options, function, arguments = ESTIMATORS[label]
    try:
        expected = theirs(function, name, data, **arguments)
    except (ValueError, AssertionError) as error:
        return f"verl raises {type(error).__name__}: {error}"
    live = data["mask"] > 0
    apart = np.abs(expected - ours(name, options, data))[live]
    return "" if (apart <= TOLERANCE).all() else f"differ by {apart.max():.3g}"


def main() -> int:
    surprises = 0
    for title, data in cases().items():
        print(f"\n{title}")
        for label in ESTIMATORS:
            found, reason = compare(label, data), KNOWN.get((label, title), "")
            mark = "  " if bool(found) == bool(reason) else "!!"
            surprises += mark == "!!"
            print(f"{mark} {label:30} {found or 'equal'}{f' ({reason})' if reason else ''}")
    print(f"\n{surprises} surprises")
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())
