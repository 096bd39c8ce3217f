"""docs/metrics.md names every metric that a run logs, and no other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
KINDS = ("reward", "group", "response", "prompt", "policy", "critic", "rollout", "eval", "run", "time", "speed")
ROWS = [line.split("|") for line in (ROOT / "docs/metrics.md").read_text(encoding="utf-8").splitlines()]
DOCUMENTED = {
    name
    for cells in ROWS
    if len(cells) > 3
    for name in re.findall(r"`([^`]+)`", cells[1])
    if name.split("/")[0] in KINDS
}
CODE = "\n".join(
    path.read_text(encoding="utf-8") for folder in ("core/rlcore", "plugins") for path in (ROOT / folder).rglob("*.py")
)

ESTIMATOR = '''
import numpy as np
from rlcore import AlgorithmConfig, hookimpl

class Config(AlgorithmConfig):
    """How far a sample's reward is above the critic's value at each token."""
    def needs(self):
        return frozenset({"batch:values"})
    def defaults(self):
        return {"loss": "clip", "aggregate": "token-mean"}

@hookimpl
def rlcore_advantage_estimator(config: Config):
    def estimate(batch):
        live = batch["loss_mask"] > 0
        returns = np.where(live, batch.spread(batch["reward"]), 0)
        return batch.with_tokens(advantages=np.where(live, returns - batch["values"], 0), returns=returns)
    return estimate
'''


def patterns() -> list[re.Pattern[str]]:
    """The documented names with their placeholders: a name or key without a slash, a number."""
    words = {"NAME": r"(?!kl_)[^/]+", "KEY": r"[^/]+", "K": r"\d+"}
    return [
        re.compile("".join(words.get(word, re.escape(word)) for word in re.split(r"(NAME|KEY|K(?![A-Za-z]))", name)))
        for name in sorted(DOCUMENTED)
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": {"kl": {"in": "loss", "coef": 0.1}}, "eval": {"samples_per_prompt": 2, "temperature": 1.0}},
        {"algorithm": {"kl": {"in": "reward", "coef": 0.1}, "rollout_correction": {}}, "run": {"eval_first": True}},
        {"algorithm": {"dynamic_sampling": {"when_short": "train"}}, "trainer": {"prompts_per_update": 2}},
        {
            "algorithm": {"use": "./estimator.py"},
            "critic": {"use": "fsdp", "lr": 1e-2},
            "rewards": {"second": {"use": "./reward.py"}},
        },
    ],
    ids=["kl in the loss", "kl in the reward", "dynamic sampling", "critic"],
)
def test_every_metric_of_a_run_is_on_the_page(task: Any, changes: dict[str, Any]) -> None:
    changes = changes | {"run": {"max_steps": 2, "eval_every": 1, **changes.get("run", {})}}
    (task.folder / "estimator.py").write_text(ESTIMATOR)
    task.run(task.write(**changes))
    rows = map(json.loads, (task.folder / "runs/tiny/metrics.jsonl").read_text().splitlines())
    logged = {name for row in rows for name in row} - {"step"}
    assert len(logged) > 25
    assert sorted(name for name in logged if not any(one.fullmatch(name) for one in patterns())) == []


@pytest.mark.parametrize("name", sorted(DOCUMENTED))
def test_every_metric_on_the_page_is_logged_somewhere(name: str) -> None:
    last = re.sub(r"_seconds$|@K$", "", name.rpartition("/")[2])
    assert last == "KEY" or re.search(rf"\b{last}\b", CODE), name


def test_an_invented_metric_is_not_on_the_page() -> None:
    assert {"policy/entropy", "reward/NAME/KEY", "eval/pass@K"} <= DOCUMENTED
    for name in ("policy/invented", "reward/NAME/more/keys", "eval/pass@k", "reward/kl_unknown/x/y", "other/mean"):
        assert not any(one.fullmatch(name) for one in patterns()), name
