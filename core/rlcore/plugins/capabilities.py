"""What one part of a run needs of another, compared before anything starts (docs/capabilities.md)."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MEANING: Mapping[str, str] = {
    "groups": "rollout.samples_per_prompt above 1",
    "pairs": "an estimator that makes units of a better and a worse sample",
    "role:reference": "a reference model, held where algorithm.kl is set or something reads its log-probs",
    "role:critic": "a critic section",
    "trains:critic": "a trainer with a value head; the critic section asks its own",
    "batch:rollout_logprobs": "the rollout engine's log-probs of the tokens it sampled",
    "batch:old_logprobs": "the trainer's log-probs before the update",
    "batch:ref_logprobs": "the log-probs of a reference model, held where something reads them",
    "batch:entropy": "the entropy of the trainer's distribution at each token",
    "batch:values": "a critic section",
    "batch:baseline_reward": "the reward of one more, greedy sample of the prompt, drawn where an estimator reads it",
    "weights:in_place": "a trainer that lends its module, in one process with the engine",
    "weights:stream": "a trainer that streams its weights",
}
"""The capabilities that the core itself brings or asks for, and what brings each."""


def batch_columns(capabilities: Iterable[str]) -> frozenset[str]:
    """NAME of each ``batch:NAME``."""
    return frozenset(c.removeprefix("batch:") for c in capabilities if c.startswith("batch:"))


def missing(needs: Mapping[str, frozenset[str]], provides: Mapping[str, frozenset[str]]) -> list[str]:
    """A sentence for each capability that a part of the run needs and no part provides.

    Args:
        needs: Part of the run ("algorithm grpo", "rollout hf") to the capabilities it needs.
        provides: Part of the run to those it provides. A part may serve itself.
    """
    provided = frozenset().union(*provides.values())
    return [
        f"{part} needs {capability}, which nothing in this run provides{_advice(capability, provided)}"
        for part, capabilities in needs.items()
        for capability in sorted(capabilities - provided)
    ]


def _advice(capability: str, provided: frozenset[str]) -> str:
    if capability in MEANING:
        return f" ({MEANING[capability]})"
    close = get_close_matches(capability, sorted({*provided, *MEANING}), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
