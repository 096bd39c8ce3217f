import copy
from typing import Any

import pytest
from rlcore.run.resume import compare

MANIFEST: dict[str, Any] = {
    "name": "a",
    "model": {"path": "Qwen/Qwen3-0.6B", "dtype": "bfloat16"},
    "data": {
        "train": "t.parquet",
        "val": None,
        "prompts_per_step": 8,
        "max_response_tokens": 64,
        "chat_template_kwargs": {},
    },
    "trainer": {"use": "fsdp", "lr": 1e-6, "tokens_per_micro_batch": 100, "offload": {"params": False}},
    "rollout": {"use": "hf", "samples_per_prompt": 8, "temperature": 1.0},
    "algorithm": {"use": "grpo", "kl": {"in": "loss", "coef": 0.001}, "loss": {"use": "clip"}},
    "rewards": {"correct": {"use": "gsm8k-rule-reward", "weight": 1.0}},
    "run": {"seed": 0, "max_steps": 10, "trackers": ["console", "jsonl"]},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    manifest = copy.deepcopy(MANIFEST)
    *parents, key = path.split(".")
    section = manifest
    for parent in parents:
        section = section[parent]
    section[key] = value
    return manifest


def test_nothing_changed() -> None:
    assert compare(MANIFEST, copy.deepcopy(MANIFEST)) == ([], [], [])
    assert compare({"a": (1, 2)}, {"a": [1, 2]}) == ([], [], [])  # YAML has no tuples


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.path", "other"),
        ("data.train", "u.parquet"),
        ("data.prompts_per_step", 16),
        ("trainer.use", "deepspeed"),
        ("rollout.samples_per_prompt", 4),
        ("algorithm.use", "ppo"),
        ("algorithm.loss.use", "gspo"),
        ("algorithm.kl.in", "reward"),
        ("rewards.correct.weight", 0.5),
        ("rewards.correct.use", "other"),
        ("run.seed", 1),
        ("run.seed", False),
    ],
)
def test_what_matters_is_refused_with_key_old_and_new(key: str, value: Any) -> None:
    free, noted, refused = compare(MANIFEST, changed(key, value))
    assert free == noted == []
    section, *rest = key.split(".")
    old = MANIFEST[section]
    for part in rest:
        old = old[part]
    assert refused == [
        f"{key}: {old!r} when the run was started, now {value!r}; a run can't change this, start another one"
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "b"),
        ("data.val", "v.parquet"),
        ("run.max_steps", 20),
        ("run.trackers", ["jsonl"]),
        ("trainer.tokens_per_micro_batch", 200),
        ("trainer.offload.params", True),
    ],
)
def test_what_says_how_long_or_where_is_free(key: str, value: Any) -> None:
    fine, noted, refused = compare(MANIFEST, changed(key, value))
    assert noted == refused == []
    assert len(fine) == 1
    assert fine[0].startswith(f"{key}: ")
    assert "counts from" not in fine[0]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trainer.lr", 5e-7),
        ("rollout.temperature", 0.8),
        ("algorithm.kl.coef", 0.01),
        ("data.max_response_tokens", 128),
        ("model.dtype", "float32"),
    ],
)
def test_the_rest_may_change_and_is_told(key: str, value: Any) -> None:
    free, fine, refused = compare(MANIFEST, changed(key, value))
    assert free == refused == []
    assert len(fine) == 1
    assert fine[0].startswith(f"{key}: ")
    assert fine[0].endswith(f"now {value!r}; it counts from the resumed step on")


def test_added_and_removed_keys() -> None:
    _, _, refused = compare(MANIFEST, changed("rewards.short", {"use": "short", "weight": 0.1}))
    assert refused[0].startswith("rewards.short.use: left out when the run was started, now 'short'")
    _, _, refused = compare(MANIFEST, changed("algorithm.kl", None))
    assert any(text.startswith("algorithm.kl: left out when the run was started, now null") for text in refused)
    _, _, refused = compare(MANIFEST, changed("data.chat_template_kwargs", {"enable_thinking": False}))
    assert any(text.startswith("data.chat_template_kwargs.enable_thinking: left out") for text in refused)


def test_a_key_that_only_begins_like_a_rule_is_not_under_it() -> None:
    assert compare({"dataset": 1}, {"dataset": 2}).refused == []
