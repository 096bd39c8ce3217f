"""Plugins that exist but may not be installed: what an error suggests when a manifest asks for one of them.

The one place of the core that names plugins. Nothing here decides behaviour, only words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlcore.plugins.kinds import Kind, split_key

if TYPE_CHECKING:
    from collections.abc import Mapping

_PARENT: Mapping[Kind, str] = {
    "trainer": "trainers",
    "rollout": "rollout",
    "algorithm": "algorithms",
    "loss": "algorithms",
    "reward": "rewards",
    "tracker": "trackers",
}


@dataclass(frozen=True)
class KnownPlugin:
    """A plugin of the family: the distribution it comes with, a sentence on what it is, whether it is only planned."""

    distribution: str
    summary: str
    planned: bool = False


KNOWN: Mapping[str, KnownPlugin] = {
    "trainer/fsdp": KnownPlugin("rlcore-fsdp", "Train with PyTorch FSDP2"),
    "trainer/deepspeed": KnownPlugin("rlcore-deepspeed", "Train with DeepSpeed ZeRO", planned=True),
    "rollout/hf": KnownPlugin("rlcore-hf", "Generate with the Hugging Face model itself"),
    "rollout/vllm": KnownPlugin("rlcore-vllm", "Generate with vLLM", planned=True),
    "rollout/sglang": KnownPlugin("rlcore-sglang", "Generate with SGLang", planned=True),
    "algorithm/grpo": KnownPlugin("rlcore-grpo", "Group relative policy optimization (GRPO, Dr. GRPO)"),
    "algorithm/ppo": KnownPlugin("rlcore-ppo", "PPO: generalised advantage estimation with a learned critic"),
    "algorithm/dapo": KnownPlugin("rlcore-dapo", "DAPO: GRPO with dynamic sampling and overlong shaping"),
    "algorithm/dpo": KnownPlugin("rlcore-dpo", "Direct preference optimization on pairs"),
    "algorithm/rloo": KnownPlugin("rlcore-baselines", "REINFORCE with a leave-one-out baseline"),
    "algorithm/reinforce-plus-plus": KnownPlugin("rlcore-baselines", "REINFORCE++"),
    "algorithm/reinforce-plus-plus-baseline": KnownPlugin("rlcore-baselines", "REINFORCE++ with a group baseline"),
    "algorithm/remax": KnownPlugin("rlcore-baselines", "ReMax: a greedy sample as the baseline"),
    "algorithm/opo": KnownPlugin("rlcore-baselines", "On-policy RL with the optimal reward baseline"),
    "algorithm/gpg": KnownPlugin("rlcore-baselines", "Group policy gradient"),
    "algorithm/gdpo": KnownPlugin("rlcore-baselines", "GRPO with each reward normalised by itself"),
    "loss/clip": KnownPlugin("rlcore", "PPO's clipped surrogate; asymmetric and dual clip"),
    "loss/sft": KnownPlugin("rlcore", "Cross-entropy on responses, for warm starts"),
    "loss/gspo": KnownPlugin("rlcore-losses", "Clipped ratio of whole sequences (GSPO)"),
    "loss/cispo": KnownPlugin("rlcore-losses", "Clipped importance weights without gradient (CISPO)"),
    "loss/gmpo": KnownPlugin("rlcore-losses", "Clipped geometric mean of ratios (GMPO)"),
    "loss/sapo": KnownPlugin("rlcore-losses", "Soft gates in place of clipping (SAPO)"),
    "loss/clip-cov": KnownPlugin("rlcore-losses", "Clip with high-covariance tokens held back"),
    "loss/kl-cov": KnownPlugin("rlcore-losses", "KL penalty on high-covariance tokens"),
    "loss/reinforce": KnownPlugin("rlcore-losses", "Plain policy gradient"),
    "loss/dpo": KnownPlugin("rlcore-dpo", "The DPO loss on pairs"),
    "reward/gsm8k-rule-reward": KnownPlugin("rlcore-gsm8k-rule-reward", "Score GSM8K answers by their final number"),
    "reward/math": KnownPlugin("rlcore-math", "Score mathematics by symbolic equality", planned=True),
    "reward/exact-match": KnownPlugin("rlcore-basic", "Compare the response with the ground truth", planned=True),
    "reward/regex-format": KnownPlugin("rlcore-basic", "Score the form of a response by a pattern", planned=True),
    "reward/length": KnownPlugin("rlcore-basic", "Soft penalty on long responses", planned=True),
    "reward/column": KnownPlugin("rlcore-basic", "Take the reward from the data", planned=True),
    "reward/code": KnownPlugin("rlcore-code", "Run generated code against tests in a sandbox", planned=True),
    "reward/reward-model": KnownPlugin(
        "rlcore-reward-model", "Score with a sequence-classification model", planned=True
    ),
    "reward/llm-judge": KnownPlugin("rlcore-llm-judge", "Score by asking an OpenAI-compatible endpoint", planned=True),
    "reward/remote": KnownPlugin("rlcore-remote", "Score by an HTTP endpoint of your own", planned=True),
    "tracker/console": KnownPlugin("rlcore", "Progress and metrics on the terminal"),
    "tracker/jsonl": KnownPlugin("rlcore", "Metrics as lines of JSON in the run folder"),
    "tracker/tensorboard": KnownPlugin("rlcore", "Metrics as TensorBoard event files"),
    "tracker/wandb": KnownPlugin("rlcore", "Metrics to Weights & Biases, online or offline"),
}
"""By ``KIND/NAME``."""


def install_hint(key: str) -> str:
    """How to get the known plugin of this ``KIND/NAME``, or that it can't be had yet."""
    known = KNOWN[key]
    if known.planned:
        return "planned, not available yet"
    if known.distribution == "rlcore":
        return "it comes with rlcore itself: install rlcore again"
    kind, _ = split_key(key, "known plugins")
    folder = f"plugins/{_PARENT[kind]}/{known.distribution.removeprefix('rlcore-').replace('-', '_')}"
    return f"it comes with {known.distribution}; in a checkout of rlcore: pip install --no-deps -e {folder}"
