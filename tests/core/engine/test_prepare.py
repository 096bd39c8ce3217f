"""From groups to batches: masks, columns, and the parts that updates train on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rlcore.data.batch import Batch
from rlcore.data.sample import Group, Prompt, Sample, Segment
from rlcore.engine.engine_group import EngineGroup
from rlcore.engine.kl_reward import KlReward
from rlcore.engine.prepare import StepPlan, add_columns, to_batch, update_preparation, updates
from rlcore.errors import BrokenPluginError
from rlcore.manifest.load import manifest_from_dict
from rlcore.manifest.schema import Manifest
from rlcore.plugins.config import PluginRef
from rlcore.runtime.workers import Workers


def manifest(tmp_path: Path, **changes: dict[str, Any]) -> Manifest:
    (tmp_path / "train.jsonl").write_text('{"prompt": "x"}\n')
    values: dict[str, dict[str, Any]] = {
        "model": {"path": "org/model"},
        "data": {"train": "train.jsonl", "prompts_per_step": 3, "max_prompt_tokens": 8, "max_response_tokens": 10},
        "trainer": {"use": "fsdp"},
        "rollout": {"use": "hf", "samples_per_prompt": 2},
        "algorithm": {"use": "grpo", "aggregate": "token-mean"},
        "rewards": {"right": {"use": "gsm8k-rule-reward"}},
    }
    for section, keys in changes.items():
        values[section] |= keys
    return manifest_from_dict({"rlcore": 1, "name": "x", **values}, tmp_path).manifest


def sample(prompt: Prompt, index: int, generated: list[int], reward: float, logprobs: bool = True) -> Sample:
    tokens = np.array(generated, np.int32)
    own = -np.arange(1, len(generated) + 1, dtype=np.float32) if logprobs else None
    segments = (Segment("prompt", prompt.tokens), Segment("generated", tokens, own, weight_version=4))
    return Sample(prompt, index, segments, "text", "stop", reward)


def groups(logprobs: bool = True) -> list[Group]:
    prompts = [Prompt(str(i), "p", np.array([7, 8][: i + 1], np.int32)) for i in range(2)]
    return [
        Group(
            10, prompts[0], [sample(prompts[0], 0, [1, 2], 1.0, logprobs), sample(prompts[0], 1, [3], 0.0, logprobs)]
        ),
        Group(11, prompts[1], [replace(sample(prompts[1], 0, [4, 5, 6], 0.5, logprobs), finish="length")]),
    ]


def test_to_batch() -> None:
    batch = to_batch(groups())
    assert batch.tokens.tolist() == [7, 1, 2, 7, 3, 7, 8, 4, 5, 6]
    assert batch.offsets.tolist() == [0, 3, 5, 10]
    assert batch["loss_mask"].tolist() == [0, 1, 1, 0, 1, 0, 0, 1, 1, 1]
    assert batch["rollout_logprobs"].tolist() == [0, -1, -2, 0, -1, 0, 0, -1, -2, -3]
    assert batch["group"].tolist() == [10, 10, 11]
    assert batch["reward"].tolist() == [1.0, 0.0, 0.5]
    assert batch["truncated"].tolist() == [False, False, True]
    assert batch["response_tokens"].tolist() == [2, 1, 3]
    assert batch["weight_version"].tolist() == [4, 4, 4]


def test_observed_tokens_carry_no_loss() -> None:
    prompt = Prompt("0", "p", np.array([7], np.int32))
    ones = np.ones(1, np.int32)
    segments = (
        Segment("prompt", prompt.tokens),
        Segment("generated", ones, np.array([-1], np.float32)),
        Segment("observed", ones * 9),
        Segment("generated", ones * 2, np.array([-2], np.float32)),
    )
    batch = to_batch([Group(0, prompt, [Sample(prompt, 0, segments, "", "stop", 1.0)])])
    assert batch["loss_mask"].tolist() == [0, 1, 0, 1]
    assert batch["rollout_logprobs"].tolist() == [0, -1, 0, -2]


def test_no_rollout_logprobs_column_unless_all_have_them() -> None:
    assert "rollout_logprobs" not in to_batch([*groups(), *groups(logprobs=False)])


@pytest.mark.parametrize(
    ("trainer", "count"),
    [({}, 1), ({"prompts_per_update": 2}, 2), ({"prompts_per_update": 1, "epochs_per_batch": 2}, 6)],
)
def test_old_logprobs_only_for_several_updates(tmp_path: Path, trainer: dict[str, Any], count: int) -> None:
    plan = StepPlan.of(manifest(tmp_path, trainer=trainer))
    assert plan.updates_per_step == count
    assert plan.old_logprobs == (count > 1)
    assert not plan.reference


class Backend:
    """Log-probs that are all the same number; counts how often it was asked."""

    def __init__(self, value: float) -> None:
        self.value, self.forwards = value, 0

    def forward(self, batch: Batch, want: Any) -> Batch:
        self.forwards += 1
        return batch.with_tokens(logprobs=np.full(len(batch.tokens), self.value, np.float32))

    def onload(self) -> None: ...
    def offload(self) -> None: ...


def workers(policy: Any, reference: Any = None) -> Workers:
    return Workers(policy, reference, None, EngineGroup([]), list)


def test_nothing_is_computed_that_is_not_used(tmp_path: Path) -> None:
    plain = manifest(tmp_path)
    policy: Any = Backend(-1.0)
    batch = add_columns(to_batch(groups()), StepPlan.of(plain), workers(policy))
    assert policy.forwards == 0
    assert not {"old_logprobs", "ref_logprobs", "token_rewards"} & batch.token_columns.keys()


def test_kl_in_the_reward(tmp_path: Path) -> None:
    settings = manifest(tmp_path, algorithm={"kl": {"in": "reward", "coef": 0.5, "estimator": "k2"}})
    plan = StepPlan.of(settings)
    assert plan.loss.kl_coef == 0
    policy: Any = Backend(-1.0)
    reference: Any = Backend(-3.0)
    assert settings.algorithm.kl is not None
    columns = add_columns(to_batch(groups()), plan, workers(policy, reference))
    batch, metrics = KlReward(settings.algorithm.kl)(columns)
    assert metrics == {"reward/kl_to_reference": 2.0, "reward/kl_coef": 0.5}
    # k2 = (−1 + 3)² / 2 = 2, times 0.5, taken off at generated tokens only
    assert batch["token_rewards"].tolist() == [-float(m) for m in batch["loss_mask"]]


def identity(batch: Batch) -> Batch:
    return batch.with_tokens(advantages=batch["loss_mask"])


def test_updates_take_whole_groups_in_order_with_weights_of_their_own(tmp_path: Path) -> None:
    settings = manifest(tmp_path, trainer={"prompts_per_update": 1, "epochs_per_batch": 2})
    parts = list(updates(to_batch(groups()), settings, identity))
    assert [part["group"].tolist() for part in parts] == [[10, 10], [11], [10, 10], [11]]
    # token-mean within each update: 3 live tokens, then 3
    assert [part["loss_weights"].sum() for part in parts] == pytest.approx([1, 1, 1, 1])
    assert parts[0]["loss_weights"].tolist() == pytest.approx([0, 1 / 3, 1 / 3, 0, 1 / 3])


def test_the_estimator_sees_the_whole_step_and_may_drop_rows(tmp_path: Path) -> None:
    seen: list[int] = []

    def drop(batch: Batch) -> Batch:
        seen.append(len(batch))
        return identity(batch.select(batch["reward"] > 0))

    (part,) = updates(to_batch(groups()), manifest(tmp_path), drop)
    assert seen == [3]
    assert part["group"].tolist() == [10, 11]


def test_a_loss_prepares_each_update_whole_with_advantages_and_weights(tmp_path: Path) -> None:
    seen: list[Batch] = []

    def prepare(update: Batch) -> Batch:
        seen.append(update)
        return update.with_tokens(extra=update["loss_weights"] * 2)

    settings = manifest(tmp_path, trainer={"prompts_per_update": 1, "epochs_per_batch": 2})
    parts = list(updates(to_batch(groups()), settings, identity, prepare))
    assert [update["group"].tolist() for update in seen] == [[10, 10], [11], [10, 10], [11]]
    assert all("advantages" in update for update in seen)
    assert [part["extra"].sum() for part in parts] == pytest.approx([2, 2, 2, 2])


def loss_plugin(tmp_path: Path, body: str) -> PluginRef:
    path = tmp_path / "my_loss.py"
    path.write_text(
        "from rlcore import hookimpl\n\n"
        "class Loss:\n"
        "    def __call__(self, inputs): ...\n"
        f"    {body}\n\n"
        "@hookimpl\n"
        "def rlcore_policy_loss():\n"
        "    return Loss()\n"
    )
    return PluginRef("loss", str(path))


def test_what_a_loss_prepares_is_its_own_method(tmp_path: Path) -> None:
    ref = loss_plugin(tmp_path, "def prepare(self, batch): return batch.with_tokens(x=batch['loss_mask'])")
    prepare = update_preparation(ref)
    assert prepare is not None
    batch = to_batch(groups())
    assert prepare(batch)["x"].tolist() == batch["loss_mask"].tolist()
    assert update_preparation(PluginRef("loss", "clip")) is None


@pytest.mark.parametrize("returned", ["None", "batch.select(batch['reward'] > 0)"])
def test_a_loss_that_returns_another_update_is_refused(tmp_path: Path, returned: str) -> None:
    prepare = update_preparation(loss_plugin(tmp_path, f"def prepare(self, batch): return {returned}"))
    assert prepare is not None
    with pytest.raises(BrokenPluginError, match=r"my_loss\.py: prepare must return the update that it was given"):
        prepare(to_batch(groups()))
