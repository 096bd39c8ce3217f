"""Whether a run may go on with another manifest than it was started with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

FREE = (
    "name",
    "data.val",
    "eval",
    "resources",
    "run.epochs",
    "run.max_steps",
    "run.folder",
    "run.eval_first",
    "run.eval_every",
    "run.save_every",
    "run.keep_checkpoints",
    "run.keep_rollouts",
    "run.trackers",
    "trainer.tokens_per_micro_batch",
    "trainer.logprob_chunk_tokens",
    "trainer.gradient_checkpointing",
    "trainer.offload",
    "critic.tokens_per_micro_batch",
    "critic.logprob_chunk_tokens",
    "critic.gradient_checkpointing",
    "critic.offload",
    "reference",
)
"""Keys that say how long, how often, where and how fast, not what is computed."""

REFUSED = (
    "rlcore",
    "model.path",
    "model.revision",
    "data",
    "trainer.use",
    "trainer.prompts_per_update",
    "trainer.epochs_per_batch",
    "critic.use",
    "critic.path",
    "rollout.samples_per_prompt",
    "algorithm",
    "rewards",
    "run.seed",
)
"""Keys that decide what the saved state means: the weights, the order of prompts, the objective."""

NOTED = ("data.max_response_tokens", "algorithm.kl.coef", "algorithm.entropy_coef")
"""Keys inside refused sections that may change, from here on."""

_MISSING = object()


class Changes(NamedTuple):
    """Sentences on changed keys: what changes no result, what does from here on, and what a run can't change."""

    free: list[str]
    noted: list[str]
    refused: list[str]


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> Changes:
    """What changed between two resolved manifests.

    Each sentence names the key, the old and the new value. The longest entry of ``FREE``, ``NOTED`` and ``REFUSED``
    that a key falls under decides; a key under none (the learning rate, the temperature, a plugin's options) may
    change, and the sentence says that it does so from here on.
    """
    before, after = dict(_flatten(old)), dict(_flatten(new))
    changes = Changes([], [], [])
    for key in dict.fromkeys([*before, *after]):
        was, now = before.get(key, _MISSING), after.get(key, _MISSING)
        if was == now and isinstance(was, bool) is isinstance(now, bool):
            continue
        change = f"{key}: {_show(was)} when the run was started, now {_show(now)}"
        verdict = _verdict(key)
        if verdict == "refused":
            changes.refused.append(f"{change}; a run can't change this, start another one")
        elif verdict == "free":
            changes.free.append(change)
        else:
            changes.noted.append(f"{change}; it counts from the resumed step on")
    return changes


def _verdict(key: str) -> str:
    rules = [(rule, "refused") for rule in REFUSED] + [(rule, "noted") for rule in NOTED]
    rules += [(rule, "free") for rule in FREE]
    matching = [(len(rule), verdict) for rule, verdict in rules if key == rule or key.startswith(f"{rule}.")]
    return max(matching)[1] if matching else "noted"


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", list(value) if isinstance(value, tuple) else value


def _show(value: Any) -> str:
    return "left out" if value is _MISSING else "null" if value is None else repr(value)
