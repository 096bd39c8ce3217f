"""What people who do this job ran into, as small cases on the real code path; the public report is named at each.

Cases that belong to one function are tests of that function; here are those that only show when parts work together.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from rlcore.data.batch import Batch
from rlcore.data.loss_weights import loss_weights
from rlcore.data.prompts import load_prompt_set
from rlcore.data.sample import Completion, Group, Prompt, Request, Sample, Sampling, Segment
from rlcore.engine.accuracy import evaluation_metrics
from rlcore.engine.engine_group import EngineGroup
from rlcore.engine.evaluate import Evaluation
from rlcore.engine.prepare import to_batch, updates
from rlcore.engine.scoring import Scorer
from rlcore.engine.source import GroupRequest, LiveSource
from rlcore.engine.stats import rollout_metrics
from rlcore.manifest.load import load_manifest
from rlcore.manifest.schema import Manifest, ModelSection, RewardSection, TrainerSection
from rlcore.plugins.config import PluginRef
from rlcore.plugins.interfaces import AlgorithmContext, LossSpec, RolloutContext, TrainContext
from rlcore.plugins.loading import build
from rlcore.run.checkpoints import CheckpointStore
from rlcore.runtime.launch import launch
from rlcore.testing.contracts.models import load_eager, next_logprobs
from rlcore.testing.samples import make_sample
from rlcore.testing.tiny import write_tiny_model
from rlcore.torch.tokenizer import load_tokenizer
from rlcore.torch.weights import open_channel

torch.set_num_threads(1)
GRPO = PluginRef("algorithm", "grpo")
CLIP = LossSpec(PluginRef("loss", "clip"), entropy=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose context matters to it."""
    return write_tiny_model(tmp_path_factory.mktemp("model"), initializer_range=0.2)


def trainer(folder: Path, *, role: Any = "policy", temperature: float = 1.0, **train: Any) -> Any:
    section = TrainerSection(use="fsdp", **({"lr": 1e-3} | train))
    model = ModelSection(path=str(folder), dtype="float32")
    context = TrainContext(role, model, section, temperature, total_updates=9, seed=0, device="cpu")
    return build(PluginRef("trainer", "fsdp"), context)


class Ends:
    """The folder's tokenizer with other EOS ids: a random model hardly ever says its own."""

    has_chat_template = True

    def __init__(self, folder: Path, eos_ids: Sequence[int] = ()) -> None:
        self._own = load_tokenizer(ModelSection(path=str(folder)))
        self.eos_ids = frozenset(eos_ids)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


def engine(folder: Path, policy: Any, tokenizer: Any, **options: int) -> Any:
    """The engine ``hf`` with the weights of ``policy``; it notes every completion."""
    section = ModelSection(path=str(folder), dtype="float32")
    made: Any = build(PluginRef("rollout", "hf", options), RolloutContext(section, tokenizer, 64, "cpu", seed=0))
    made.receive_weights(open_channel(policy, "stream"), 3)
    made.seen, poll = {}, made.poll

    def noting(timeout_seconds: float) -> list[Completion]:
        done: list[Completion] = poll(timeout_seconds)
        made.seen.update({c.request_id: c for c in done})
        return done

    made.poll = noting
    return made


def scorer_of(reward: Callable[[Sample], Any]) -> Scorer:
    return Scorer({"r": RewardSection(use="r")}, load=lambda ref, context: reward)


def letters(sample: Sample) -> float:
    return sum(c.isascii() for c in sample.response) / max(1, len(sample.response))


def prompt(tokens: Sequence[int], name: str = "p") -> Prompt:
    return Prompt(name, name, np.array(tokens, np.int32))


def collect(made: Any, tokenizer: Any, prompts: Sequence[Prompt], samples: int, sampling: Sampling) -> list[Group]:
    source = LiveSource(EngineGroup([made]), scorer_of(letters), tokenizer, seed=1)
    wanted = [GroupRequest(50 + i, p, samples, sampling, 0, want_logprobs=True) for i, p in enumerate(prompts)]
    return source.collect(wanted, lambda done, total: None)


# --- a run's manifest ----------------------------------------------------------------------------------------------


def write_run(where: Path, model: Path, reward: str, **sections: dict[str, Any]) -> Path:
    """A manifest of tiny steps: a prompt each, two samples of two tokens. ``reward`` is the body of the function."""
    lines = [json.dumps({"prompt": f"q{i}", "ground_truth": str(i)}) for i in range(12)]
    (where / "train.jsonl").write_text("\n".join(lines) + "\n")
    (where / "reward.py").write_text(
        "import numpy as np\nfrom rlcore import hookimpl\n\n@hookimpl\ndef rlcore_reward():\n    calls = []\n"
        f"    def score(sample):\n        calls.append(sample)\n        {reward}\n    return score\n"
    )
    values: dict[str, Any] = {
        "model": {"path": str(model), "dtype": "float32"},
        "data": {
            "train": "train.jsonl",
            "columns": {"prompt": "prompt", "ground_truth": "ground_truth"},
            "prompts_per_step": 1,
            "max_prompt_tokens": 16,
            "max_response_tokens": 2,
        },
        "trainer": {"use": "fsdp", "tokens_per_micro_batch": 256},
        "rollout": {"use": "hf", "samples_per_prompt": 2},
        "algorithm": {"use": "grpo"},
        "rewards": {"r": {"use": "./reward.py"}},
        "resources": {"device": "cpu", "threads": 1},
        "run": {"trackers": ["jsonl"], "max_steps": 2},
    }
    for section, keys in sections.items():
        values[section] = values.get(section, {}) | keys
    path = where / "run.yaml"
    path.write_text(yaml.safe_dump({"rlcore": 1, "name": "x", **values}))
    return path


def read_metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def steps_saved(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


# --- groups and advantages -----------------------------------------------------------------------------------------


def test_samples_of_a_prompt_are_one_group_at_the_advantage_step(folder: Path, tmp_path: Path) -> None:
    """rllm-org/rllm#776: a new group id for every sample makes every group one of size 1, and the baseline is gone."""
    tokenizer = Ends(folder)
    settings = load_manifest(write_run(tmp_path, folder, "return 0.0", rollout={"samples_per_prompt": 4})).manifest
    groups = collect(
        engine(folder, trainer(folder), tokenizer), tokenizer, [prompt([1]), prompt([2])], 4, Sampling(max_tokens=6)
    )
    batch = to_batch(groups)
    assert np.unique(batch["group"], return_counts=True)[1].tolist() == [4, 4]
    (update,) = updates(batch, settings, build(GRPO, AlgorithmContext(4, 2, seed=0)))
    for group in groups:
        rewards = np.array([sample.reward for sample in group.samples], np.float32).astype(float)
        rows = np.flatnonzero(update["group"] == group.id)
        expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
        assert np.ptp(rewards) > 0
        for row, advantage in zip(rows, expected, strict=True):
            part = update.select(np.array([row]))
            np.testing.assert_allclose(part["advantages"][part["loss_mask"] == 1], advantage, rtol=1e-4)


def test_a_step_whose_samples_are_all_dropped_moves_nothing(folder: Path, tmp_path: Path) -> None:
    """huggingface/trl#3248: with every response filtered out the mean over none is NaN; here the update is skipped."""
    (tmp_path / "drop.py").write_text(
        "import numpy as np\nfrom rlcore import hookimpl, AlgorithmConfig\n\n"
        "class Config(AlgorithmConfig):\n    def defaults(self):\n"
        "        return {'loss': 'clip', 'aggregate': 'token-mean'}\n\n"
        "@hookimpl\ndef rlcore_advantage_estimator(config: Config):\n"
        "    return lambda b: b.select(b['reward'] > 1).with_tokens(advantages=np.zeros(0, np.float32))\n"
    )
    path = write_run(tmp_path, folder, "return 0.0", algorithm={"use": "./drop.py"})
    run = launch(load_manifest(path))
    rows = read_metrics(run)
    assert [row["run/updates"] for row in rows] == [0, 0]
    assert all(np.isfinite(value) for row in rows for value in row.values())
    saved = load_eager(run / "checkpoints/step_000002/model").state_dict()
    assert all(torch.equal(saved[name], tensor) for name, tensor in load_eager(folder).state_dict().items())


# --- tokens, masks, lengths ----------------------------------------------------------------------------------------


def test_sampled_ids_that_their_own_text_would_not_give_reach_the_loss_unchanged(folder: Path) -> None:
    """NovaSky-AI/SkyRL#123: text that was decoded is tokenised again, and log-probs belong to other ids."""
    tokenizer = Ends(folder)
    made = engine(folder, trainer(folder), tokenizer)
    groups = collect(made, tokenizer, [prompt([1, 2])], 8, Sampling(max_tokens=12))
    batch = to_batch(groups)
    again = 0
    for row in range(8):
        completion = made.seen[f"50/{row}"]
        part = batch.select(np.array([row]))
        assert part.tokens.tolist() == [1, 2, *completion.tokens]
        assert part["rollout_logprobs"].tolist() == [0, 0, *completion.logprobs]
        again += tokenizer.encode_text(tokenizer.decode(completion.tokens)).tolist() == completion.tokens.tolist()
    assert again < 8, "bytes that are no UTF-8 must be among the samples, or this shows nothing"


def test_ends_are_known_by_length_and_reason_never_by_token_value(folder: Path) -> None:
    """NVIDIA-NeMo/Megatron-Bridge#4660, bingreeky/MemGen#33, OpenRLHF/OpenRLHF#238, NovaSky-AI/SkyRL#111.

    Pad equals EOS, and prompts hold it too. The EOS trains; nothing follows it; one that was cut off gets none; an
    answer that ends exactly at the limit is not cut off; an EOS at once is a response of one token.
    """
    eos = list(range(0, 261, 4))
    pad = load_tokenizer(ModelSection(path=str(folder))).encode_text("<|pad|>")[0]
    tokenizer = Ends(folder, [*eos, int(pad)])
    policy = trainer(folder)
    made = engine(folder, policy, tokenizer)
    groups = collect(made, tokenizer, [prompt([pad, 3, pad]), prompt([pad])], 48, Sampling(max_tokens=4))
    batch = to_batch(groups)
    scored = policy.forward(batch, ["logprobs"])
    kinds = set()
    for row, sample in enumerate(s for group in groups for s in group.samples):
        tokens = sample.segments[1].tokens
        start = len(sample.prompt.tokens)
        part = scored.select(np.array([row]))
        ended = int(tokens[-1]) in tokenizer.eos_ids
        assert part["loss_mask"].tolist() == [0] * start + [1] * len(tokens)
        assert (part["logprobs"][start:] < 0).all(), "every token of the response has a log-prob, the EOS too"
        assert not tokenizer.eos_ids & set(tokens[:-1].tolist())
        assert bool(part["truncated"][0]) is sample.truncated is (not ended)
        assert len(tokens) == 4 or ended
        kinds.add((len(tokens), ended))
    assert kinds >= {(1, True), (4, True), (4, False)}


def test_a_response_without_tokens_trains_nothing_and_counts_in_the_baseline(folder: Path) -> None:
    """verl-project/verl-omni#497, modelscope/ms-swift#7281: index −1 puts its reward on padding, or an IndexError."""
    first, second = prompt([5, 6, 7]), prompt([8])

    def sample(of: Prompt, tokens: list[int], reward: float) -> Sample:
        segments = (Segment("prompt", of.tokens), Segment("generated", np.array(tokens, np.int32)))
        return Sample(of, 0, segments, "", "abort", reward)

    groups = [
        Group(0, first, [sample(first, [1, 2, 3, 4], 1.0), sample(first, [], 0.0)]),
        Group(1, second, [sample(second, [9, 9], 0.0), sample(second, [], 0.0)]),
    ]
    batch = build(GRPO, AlgorithmContext(2, 4, seed=0))(to_batch(groups))
    batch = batch.with_tokens(loss_weights=loss_weights(batch, "seq-mean-token-mean", max_response_tokens=4))
    one = 0.5 / (np.sqrt(0.5) + 1e-6)  # rewards 1 and 0
    np.testing.assert_allclose(batch["advantages"], [0, 0, 0, *[one] * 4, *[0] * 7], rtol=1e-6)
    # Two rows have live tokens: 1 / (2 · 4) and 1 / (2 · 2).
    np.testing.assert_allclose(batch["loss_weights"], [0, 0, 0, *[1 / 8] * 4, 0, 0, 0, 0, 1 / 4, 1 / 4, 0])
    policy, without = trainer(folder), trainer(folder)
    metrics = policy.forward_backward(batch, CLIP)
    assert metrics == pytest.approx(without.forward_backward(batch.select(np.array([0, 2])), CLIP))
    assert policy.optimizer_step() == pytest.approx(without.optimizer_step())
    assert all(np.isfinite(value) for value in metrics.values())


# --- log-probs -----------------------------------------------------------------------------------------------------


def test_temperature_is_in_the_log_probs_of_engine_policy_and_reference_alike(folder: Path) -> None:
    """huggingface/trl#3029, THUDM/slime#557: without it the first ratio is not 1 and the policy drifts for nothing."""
    policy, reference = trainer(folder, temperature=0.6), trainer(folder, role="reference", temperature=0.6)
    tokenizer = Ends(folder)
    made = engine(folder, policy, tokenizer)
    batch = to_batch(collect(made, tokenizer, [prompt([1, 2, 3])], 4, Sampling(max_tokens=8, temperature=0.6)))
    live = batch["loss_mask"] == 1
    model = load_eager(folder)
    expected = np.zeros(len(batch.tokens))
    for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        row = batch.tokens[start:end]
        expected[start + 1 : end] = next_logprobs(model, row, 0.6)[np.arange(len(row) - 1), row[1:]]
    for got in (batch["rollout_logprobs"], *(m.forward(batch, ["logprobs"])["logprobs"] for m in (policy, reference))):
        np.testing.assert_allclose(got[live], expected[live], atol=1e-5)
    batch = batch.with_tokens(
        old_logprobs=batch["rollout_logprobs"],
        advantages=batch["loss_mask"],
        loss_weights=loss_weights(batch, "token-mean", max_response_tokens=8),
    )
    metrics = policy.forward_backward(batch, CLIP)
    assert metrics["policy/ratio"] == pytest.approx(1, abs=1e-5)
    assert metrics["policy/clip_fraction"] == 0


def test_what_stands_beside_a_prompt_changes_nothing_where_positions_are_absolute(tmp_path: Path) -> None:
    """OpenRLHF/OpenRLHF#217, huggingface/trl#6800: padding without position ids (a GPT-2 goes from 4.5 to 13.6)."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=261, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.3, bos_token_id=1
    )
    torch.manual_seed(0)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)  # type: ignore[no-untyped-call]
    model = load_eager(tmp_path)
    policy = trainer(tmp_path)

    class Plain:
        eos_ids = frozenset[int]()

    made = engine(tmp_path, policy, Plain())
    asked = [7, 8, 9]
    for more in (0, 1, 3, 8):
        others = [list(range(20, 20 + len(asked) + more))] * 2
        requests = [
            Request(str(i), str(i), np.array(tokens, np.int32), Sampling(max_tokens=6), 5, want_logprobs=True)
            for i, tokens in enumerate([asked, *others])
        ]
        made.submit(requests)
        while len(made.seen) < 3:
            made.poll(60.0)
        done = made.seen["0"]
        row = np.concatenate([requests[0].tokens, done.tokens])
        expected = next_logprobs(model, row)[np.arange(2, len(row) - 1), row[3:]]
        np.testing.assert_allclose(done.logprobs, expected, atol=1e-5)
        packed = Batch.from_sequences([np.arange(30, 30 + more + 1), row])
        np.testing.assert_allclose(policy.forward(packed, ["logprobs"])["logprobs"][-6:], expected, atol=1e-5)
        made.seen.clear()


def test_entropy_is_over_response_tokens_only(folder: Path) -> None:
    """huggingface/trl#6121: with prompts or padding in the mean it is off, even negative."""
    batch = Batch.from_sequences([[1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11]])
    mask = np.array([0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 0], np.float32)
    batch = batch.with_tokens(loss_mask=mask, advantages=mask, loss_weights=mask / 3)
    metrics = trainer(folder).forward_backward(batch, CLIP)
    model = load_eager(folder)
    logp = np.concatenate([next_logprobs(model, batch.tokens[:8])[[5, 6]], next_logprobs(model, batch.tokens[8:])[[0]]])
    assert metrics["policy/entropy"] == pytest.approx(-(np.exp(logp) * logp).sum(-1).mean(), rel=1e-5)


def test_engine_and_trainer_are_compared_where_the_health_check_looks(folder: Path, tmp_path: Path) -> None:
    """NVIDIA-NeMo/RL#316: two log-probs of one token, and nobody sees how far apart they are."""
    path = write_run(tmp_path, folder, "return 0.0")
    rows = read_metrics(launch(load_manifest(path)))
    assert 0 < rows[0]["rollout/logprob_difference_mean"] <= rows[0]["rollout/logprob_difference_max"] < 1e-4
    assert "rollout/logprob_difference_max" not in rows[1], "once is enough: it costs a forward pass"


# --- rewards and metrics -------------------------------------------------------------------------------------------


def test_ground_truths_of_every_type_score_alike(folder: Path, tmp_path: Path) -> None:
    """allenai/open-instruct#717: a gold is text in one file, a number in another, a list in a third."""
    path = write_run(tmp_path, folder, "return 0.0", data={"train": ["a.jsonl", "b.jsonl"], "prompts_per_step": 5})
    golds: list[list[Any]] = [["18", 18], [18.0, ["18"], "$18.00"]]
    for name, values in zip("ab", golds, strict=True):
        lines = [json.dumps({"prompt": f"{name}{i}", "ground_truth": gold}) for i, gold in enumerate(values)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    rows = load_prompt_set(load_manifest(path).manifest, "train", Ends(folder)).prompts
    scorer = Scorer({"r": RewardSection(use="gsm8k-rule-reward")})
    for text, right in (("so #### 18", 1.0), ("#### 18 " + "and so on " * 50, 1.0), ("#### 17", 0.0)):
        scored = scorer.score([replace(make_sample(text), prompt=row) for row in rows])
        assert [sample.reward for sample in scored] == [right] * 5


def test_rewards_of_one_step_may_differ_in_shape() -> None:
    """verl-project/verl#1031, #6830: a float here, a mapping there; keys are averaged where they are."""
    returned = [{"score": 1, "acc": 1}, 0.0, {"score": 0, "fmt": 1}]
    scored = scorer_of(lambda sample: returned[sample.index]).score([make_sample("x", index=i) for i in range(3)])
    assert [sample.reward for sample in scored] == [1, 0, 0]
    metrics = rollout_metrics([Group(0, scored[0].prompt, scored)])
    assert metrics["reward/r/acc"] == metrics["reward/r/fmt"] == 1
    assert metrics["reward/r/mean"] == pytest.approx(1 / 3)


def test_numbers_of_numpy_come_out_of_a_run_as_numbers(folder: Path, tmp_path: Path) -> None:
    """verl-project/verl#4924, #6167: bool_, int64 and float32 break the JSON of metrics and rollouts."""
    body = 'return {"score": np.float32(len(calls)), "ok": np.bool_(True), "n": np.int64(3)}'
    run = launch(load_manifest(write_run(tmp_path, folder, body)))
    rows = read_metrics(run)
    assert [(row["reward/r/ok"], row["reward/r/n"], row["reward/mean"]) for row in rows] == [(1, 3, 1.5), (1, 3, 3.5)]
    table = pq.read_table(run / "rollouts/step_000002.parquet")
    assert sorted(table["reward"].to_pylist()) == [3, 4]


def test_the_last_short_batch_of_an_evaluation_counts(folder: Path, tmp_path: Path) -> None:
    """verl-project/verl#78, NVIDIA-NeMo/RL#1029, verl-project/verl#926: ten prompts, four at a time, a plain float."""
    tokenizer = Ends(folder)
    rows = [replace(prompt([i], str(i)), ground_truth=i) for i in range(10)]
    source = LiveSource(
        EngineGroup([engine(folder, trainer(folder), tokenizer, max_rows=4)]),
        scorer_of(lambda sample: float(sample.ground_truth >= 7)),
        tokenizer,
        seed=0,
    )
    settings: Manifest = load_manifest(write_run(tmp_path, folder, "return 0.0")).manifest
    metrics = Evaluation(settings, rows, source).run(lambda done, total: None)
    assert metrics["eval/accuracy"] == metrics["eval/reward/mean"] == metrics["eval/pass@1"] == pytest.approx(0.3)


def test_votes_are_for_numbers_and_pass_is_without_replacement() -> None:
    """scitix/sieval#88: votes on raw text part equal answers. verl-project/verl#7240: best@4 of 1 right in 4 is 1."""
    texts = ["#### $18", "#### 18.0", "#### 7", "no idea"]
    scored = Scorer({"r": RewardSection(use="gsm8k-rule-reward")}).score([make_sample(t, 18) for t in texts])
    assert evaluation_metrics([Group(0, scored[0].prompt, scored)], [4])["eval/maj@4"] == 1
    rare = Scorer({"r": RewardSection(use="gsm8k-rule-reward")}).score([make_sample(t, 7) for t in texts])
    metrics = evaluation_metrics([Group(0, rare[0].prompt, rare)], [4])
    assert (metrics["eval/pass@4"], metrics["eval/maj@4"]) == (1, 0)


# --- checkpoints and processes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "saved"), [(7, [5, 7]), (10, [5, 10])])
def test_the_last_step_is_saved_once(
    steps: int, saved: list[int], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl-project/verl#7516, #260: lost if it is no multiple of save_every, saved twice if it is."""
    calls: list[int] = []
    save = CheckpointStore.save

    def counted(self: CheckpointStore, step: int, *rest: Any) -> Any:
        calls.append(step)
        return save(self, step, *rest)

    monkeypatch.setattr(CheckpointStore, "save", counted)
    path = write_run(tmp_path, folder, "return 0.0", run={"max_steps": steps, "save_every": 5, "keep_checkpoints": 9})
    run = launch(load_manifest(path))
    assert calls == saved
    assert steps_saved(run) == [f"step_{step:06d}" for step in saved]


def test_a_reward_that_fails_in_step_2_ends_the_run_with_step_1_whole(folder: Path, tmp_path: Path) -> None:
    """rllm-org/rllm#568: non-zero exit, no process left, the last checkpoint whole; and it can be gone on from."""
    path = write_run(tmp_path, folder, "return 1 / (len(calls) - 3)", run={"save_every": 1, "max_steps": 2})
    done = subprocess.run(
        [sys.executable, "-m", "rlcore", "run", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert done.returncode != 0
    assert "raised ZeroDivisionError" in done.stderr
    assert "train.jsonl" in done.stderr, "the sample is shown"
    assert steps_saved(tmp_path / "runs/x") == ["step_000001"]
    write_run(tmp_path, folder, "return 0.5", run={"save_every": 1, "max_steps": 2})
    run = launch(load_manifest(path), resume=True)
    assert [row["step"] for row in read_metrics(run)] == [1, 2]
