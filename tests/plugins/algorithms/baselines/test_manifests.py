"""Each estimator in a manifest: what it brings, and what is refused before anything starts."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet
from rlcore.engine.prepare import StepPlan
from rlcore.errors import ManifestError
from rlcore.manifest.load import load_manifest

GROUPED = ("rloo", "reinforce-plus-plus-baseline", "opo", "gpg", "gdpo")
ALL = (*GROUPED, "reinforce-plus-plus", "remax")

MANIFEST = """\
rlcore: 1
name: test
model: {path: ./model}
data: {train: train.parquet, prompts_per_step: 4, max_prompt_tokens: 100, max_response_tokens: 200}
trainer: {use: fsdp}
rollout: {use: hf, samples_per_prompt: 4}
algorithm: {use: rloo}
rewards: {correct: {use: gsm8k-rule-reward}}
"""


@pytest.fixture
def load(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps({"model_type": "other"}))
    parquet.write_table(pa.table({"prompt": ["1", "2", "3", "4"]}), tmp_path / "train.parquet")
    (tmp_path / "m.yaml").write_text(MANIFEST)
    return lambda *overrides: load_manifest(tmp_path / "m.yaml", overrides).manifest


@pytest.mark.parametrize("name", ALL)
def test_nothing_more_than_the_name_is_needed(load, name):
    manifest = load(f"algorithm.use={name}")
    assert manifest.algorithm.loss.use == ("reinforce" if name == "gpg" else "clip")
    plan = StepPlan.of(manifest)
    assert plan.greedy_baseline == (name == "remax")
    assert not (plan.old_logprobs or plan.reference or plan.critic)


@pytest.mark.parametrize("name", ALL)
def test_one_sample_of_a_prompt_is_enough_without_groups(load, name):
    one = (f"algorithm.use={name}", "rollout.samples_per_prompt=1")
    if name in GROUPED:
        with pytest.raises(ManifestError, match="compares the samples of a prompt"):
            load(*one)
    else:
        load(*one)


def test_gdpo_refuses_kl_in_the_reward(load):
    kl = "algorithm.kl={in: reward, coef: 0.1, estimator: k1}"
    with pytest.raises(ManifestError, match=r"algorithm\.kl: gdpo normalises each reward .*; set algorithm\.kl\.in to"):
        load("algorithm.use=gdpo", kl)
    load("algorithm.use=gdpo", kl.replace("reward", "loss").replace("k1", "k3"))
    load("algorithm.use=gdpo", kl.replace("0.1", "0"))
    load("algorithm.use=reinforce-plus-plus", kl)


def test_gamma_out_of_range_is_refused_with_its_place(load):
    with pytest.raises(ManifestError, match=r"algorithm\.gamma: must be a number from 0 to 1, got 1\.5"):
        load("algorithm.use=reinforce-plus-plus", "algorithm.gamma=1.5")
