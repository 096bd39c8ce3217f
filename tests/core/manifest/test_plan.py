from __future__ import annotations

import json

import pytest
from rlcore.errors import ManifestError
from rlcore.manifest.load import load_manifest
from rlcore.manifest.plan import plan_rows


@pytest.fixture
def rows(bench, good):
    def plan(text: str = good, *overrides: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, value in plan_rows(bench.load(text, *overrides)):
            found.setdefault(name, []).append(value)
        return found

    return plan


def test_sizes(rows) -> None:
    # 20 rows, 8 prompts a step: 2 steps an epoch; 8 × 4 samples of 100 + 200 tokens.
    plan = rows()
    assert plan["steps"] == ["2 of 8 prompts × 1 epoch = 2 (20 rows)"]
    assert plan["updates"] == ["1 a step: 1 of 8 prompts"]
    assert plan["samples"] == ["32 a step, of at most 9,600 tokens"]
    assert plan["evaluation"] == ["none"]
    assert plan["models"] == ["policy"]


def test_epochs_short_steps_and_limits(rows, good) -> None:
    plan = rows(good, "data.last_batch=short", "run.epochs=3", "run.max_steps=7", "data.overlong_prompts=drop")
    assert plan["steps"] == [
        "3 of 8 prompts × 3 epochs = 9, stopped at 7 by run.max_steps (20 rows; overlong prompts drop out)"
    ]
    assert "max_steps" not in rows(good, "run.max_steps=70")["steps"][0]


def test_updates_with_a_remainder(rows, good) -> None:
    plan = rows(good, "trainer.prompts_per_update=3", "trainer.epochs_per_batch=2")
    assert plan["updates"] == ["6 a step: 2 of 3 prompts and one of 2, 2 times over"]
    assert not any("log-probs before" in sentence for sentence in plan["skipped"])


def test_what_is_skipped_and_held(rows, good) -> None:
    plan = rows()
    assert [sentence.split(":")[0] for sentence in plan["skipped"]] == [
        "reference model",
        "log-probs before the update",
        "log-probs from the engine",
        "critic",
    ]
    held = rows(good, "algorithm.kl={in: reward, coef: 0.1}")
    assert held["models"] == ["policy and reference"]
    assert [sentence.split(":")[0] for sentence in held["skipped"]] == ["log-probs from the engine", "critic"]


CRITIC = """
from rlcore import AlgorithmConfig, hookimpl
class Config(AlgorithmConfig):
    def needs(self): return frozenset({"batch:values", "batch:baseline_reward", "batch:rollout_logprobs"})
    def defaults(self): return {"loss": "clip", "aggregate": "token-mean"}
@hookimpl
def rlcore_advantage_estimator(config: Config):
    return lambda batch: batch
"""


def test_a_critic_and_what_else_an_estimator_reads(rows, bench, good) -> None:
    (bench.folder / "est.py").write_text(CRITIC)
    text = good.replace("{use: grpo}", "{use: ./est.py}") + "critic: {use: fsdp, lr: 1.0e-5, warmup_steps: 3}\n"
    plan = rows(text, "algorithm.kl={in: loss, coef: 0.1}")
    assert plan["models"] == ["policy, reference and critic"]
    assert plan["critic"] == [
        f"from {bench.folder}/model, lr 1e-05; an update moves values by at most 0.5, and the policy is first trained "
        "after 3 steps"
    ]
    # 8 × (4 + 1) samples of 300 tokens.
    assert plan["samples"] == [
        "40 a step, of at most 12,000 tokens, of which one of each prompt is greedy and a baseline only"
    ]
    assert [sentence.split(":")[0] for sentence in plan["skipped"]] == ["log-probs before the update"]
    free = rows(text, "critic.value_clip=null", "critic.warmup_steps=0", "critic.path=Qwen/Qwen3-0.6B")
    assert free["critic"] == ["from Qwen/Qwen3-0.6B, lr 1e-05; values move freely"]


def test_sampling_and_terms(rows, good) -> None:
    assert not {"dynamic", "KL", "correction"} & rows().keys()
    plan = rows(
        good,
        "algorithm.dynamic_sampling={max_generation_rounds: 3}",
        "algorithm.rollout_correction={}",
        "algorithm.kl={in: reward, coef: 0.1, target: 6, estimator: k1}",
    )
    assert plan["dynamic"] == [
        "prompts whose answers are equal in reward correct are replaced, in up to 3 waves a step; after the last, the "
        "run stops"
    ]
    assert plan["KL"] == ["k1 in the reward, times 0.1 (adapted to a KL of 6 a token)"]
    assert plan["correction"] == ["importance weights of tokens are cut to 2"]
    assert [sentence.split(":")[0] for sentence in plan["skipped"]] == ["critic"]
    plan = rows(
        good,
        "algorithm.dynamic_sampling={when_short: train, filter_on: correct}",
        "algorithm.rollout_correction={mode: mask, level: sequence, floor: 0.5}",
        "algorithm.kl={in: loss, coef: 0.1}",
    )
    assert plan["dynamic"][0].endswith("it trains on what there is")
    assert plan["correction"] == ["samples don't train whose importance weight is outside 0.5 to 2"]
    assert plan["KL"] == ["k3 in the loss, times 0.1 (fixed)"]


def test_local_files_are_not_imported_for_the_plan(bench, good) -> None:
    (bench.folder / "est.py").write_text("raise RuntimeError('imported')")
    for old, new in (("{use: grpo}", "{use: ./est.py}"), ("{use: grpo}", "{use: grpo, loss: ./est.py}")):
        loaded = load_manifest(bench.write(good.replace(old, new)), load_local=False)
        assert plan_rows(loaded) == [
            ("steps", "2 of 8 prompts × 1 epoch = 2 (20 rows)"),
            ("evaluation", "none"),
            ("the rest", f"is not known unless {bench.folder}/est.py may be imported"),
        ]


def test_evaluation(rows, good) -> None:
    val = "data.val=val.parquet"
    assert rows(good, val, "run.eval_first=true", "run.eval_every=5")["evaluation"] == [
        "before the first step and after every 5 steps and the last, on 20 prompts, greedy"
    ]
    assert rows(good, val, "run.eval_every=5", "eval={max_prompts: 7, temperature: 1, samples_per_prompt: 2}")[
        "evaluation"
    ] == ["after every 5 steps and the last, on 7 prompts, 2 samples each"]


def test_memory(rows, bench, good) -> None:
    assert rows()["memory"] == ["unknown: the model is of an architecture without a formula here"]
    assert rows(good, "model.path=Qwen/Qwen3-1.7B")["memory"] == ["unknown: the model is not on this machine"]
    config = {"model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536}
    config |= {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True}
    (bench.folder / "model/config.json").write_text(json.dumps(config))
    plan = rows()
    assert plan["parameters"] == ["134,515,008"]
    # 8 bytes a parameter: 134,515,008 × 8 / 2^30 = 1.00 GiB.
    assert "optimizer 1.00" in plan["memory"][0]
    # A critic's float32 weights with the copy in bfloat16 and two moments: 14 bytes × 134,515,585 / 2^30 = 1.75 GiB.
    (bench.folder / "est.py").write_text(CRITIC)
    text = good.replace("{use: grpo}", "{use: ./est.py}") + "critic: {use: fsdp}\n"
    assert "critic 1.75" in rows(text)["memory"][0]
    assert rows(text, "critic.path=Qwen/Qwen3-0.6B")["memory"] == ["unknown: the critic is not on this machine"]


def test_rows_of_jsonl_are_not_counted(rows, bench, good) -> None:
    (bench.folder / "train.jsonl").write_text("{}\n")
    assert rows(good, "data.train=train.jsonl")["steps"] == [
        "1 epoch of as many as the data has (rows of JSONL are counted by --data)"
    ]


def test_fewer_prompts_than_a_step_needs(bench, good) -> None:
    text = good.replace("prompts_per_step: 8", "prompts_per_step: 21")
    with pytest.raises(ManifestError, match=r"m\.yaml:5:10: data\.train: holds 20 prompts, fewer than the 21 of "):
        plan_rows(bench.load(text))
    plan_rows(bench.load(text, "data.last_batch=short"))


def test_a_file_that_is_no_parquet(bench, good) -> None:
    (bench.folder / "bad.parquet").write_text("no parquet")
    with pytest.raises(ManifestError, match=r"m\.yaml:5:26: data\.train\.1: .*bad\.parquet is no parquet file: "):
        plan_rows(bench.load(good.replace("train.parquet", "[train.parquet, bad.parquet]")))
