# ruff: noqa: E501 - tables of messages
from __future__ import annotations

import pytest
from rlcore.engine.prepare import ON_DEMAND, StepPlan
from rlcore.manifest.load import load_manifest, manifest_from_dict


@pytest.mark.parametrize(
    ("replace", "tail", "message"),
    [
        # sizes
        ({"{use: fsdp}": "{use: fsdp, prompts_per_update: 9}"}, "",
         "m.yaml:9:42: trainer.prompts_per_update: must be at most data.prompts_per_step (8), got 9"),
        ({"{use: fsdp}": "{use: fsdp, tokens_per_micro_batch: 299}"}, "",
         "m.yaml:9:46: trainer.tokens_per_micro_batch: must hold the longest sequence, as none is ever split: "
         "data.max_prompt_tokens + data.max_response_tokens = 300, got 299"),
        ({"max_response_tokens: 200": "max_response_tokens: 20000"}, "",
         "m.yaml:9:1: trainer.tokens_per_micro_batch: must hold the longest sequence, as none is ever split: "
         "data.max_prompt_tokens + data.max_response_tokens = 20100, got 16384"),
        ({"samples_per_prompt: 4": "samples_per_prompt: 4, min_tokens: 201"}, "",
         "m.yaml:10:55: rollout.min_tokens: must be at most data.max_response_tokens (200), got 201"),
        # groups
        ({"samples_per_prompt: 4": "samples_per_prompt: 1"}, "",
         "m.yaml:10:40: rollout.samples_per_prompt: algorithm grpo compares the samples of a prompt, and one has nothing "
         "to be compared with; set 2 or more"),
        # reference
        ({}, "reference: {use: fsdp}\n", "m.yaml:14:12: reference: nobody uses a reference model without a KL term; set "
         "algorithm.kl, or remove this section"),
        # evaluation
        ({}, "eval: {k: [1, 2]}\n", "m.yaml:14:15: eval.k.1: must be at most eval.samples_per_prompt (1), got 2"),
        ({}, "eval: {samples_per_prompt: 4}\n", "m.yaml:14:28: eval.samples_per_prompt: greedy decoding gives 4 equal "
         "answers; set eval.temperature above 0, or this to 1"),
        ({}, "run: {eval_first: true}\n", "m.yaml:14:19: run.eval_first: there is nothing to evaluate on; set data.val"),
        ({}, "run: {eval_every: 5}\n", "m.yaml:14:19: run.eval_every: there is nothing to evaluate on; set data.val"),
        # files
        ({"train.parquet": "none.parquet"}, "", "m.yaml:5:10: data.train: no such file: none.parquet"),
        ({"train.parquet": "[train.parquet, none.parquet]"}, "",
         "m.yaml:5:26: data.train.1: no such file: none.parquet"),
        ({"train.parquet": "model"}, "", "m.yaml:5:10: data.train: model is a folder; name the files in it"),
        ({"train.parquet": "m.yaml"}, "", "m.yaml:5:10: data.train: m.yaml must end in .parquet or .jsonl"),
        ({"train.parquet": "[]"}, "", "m.yaml:5:10: data.train: names no file"),
        ({"train.parquet": "''"}, "", "m.yaml:5:10: data.train: no such file: "),
        # model
        ({"./model": "./modell"}, "", "m.yaml:3:15: model.path: no such folder: modell"),
        ({"./model": "."}, "", "m.yaml:3:15: model.path: {folder} holds no config.json; it is no Hugging Face model folder"),
        ({"./model": "''"}, "", "m.yaml:3:15: model.path: must be a Hugging Face id or a folder, got ''"),
    ],
)  # fmt: skip
def test_what_sections_must_agree_on(bench, good, replace, tail, message) -> None:
    for old, new in replace.items():
        assert old in good
        good = good.replace(old, new)
    assert bench.problems(good + tail) == [message.replace("{folder}", str(bench.folder))]


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("{use: fsdp}", "{use: fsdp, trust_remote_code: true}", "m.yaml:9:22: trainer.trust_remote_code"),
        ("{use: fsdp}", "{use: fsdp, trust_remote_code: false}", "m.yaml:9:22: trainer.trust_remote_code"),
        ("use: hf,", "use: hf, engine: {trust-remote-code: true},", "m.yaml:10:29: rollout.engine.trust-remote-code"),
        ("use: hf,", "use: hf, engine: {args: [--trust-remote-code=1]},", "m.yaml:10:36: rollout.engine.args.0"),
        ("max_prompt_tokens: 100", "max_prompt_tokens: 100\n  chat_template_kwargs: {Trust_Remote_Code: true}",
         "m.yaml:8:26: data.chat_template_kwargs.Trust_Remote_Code"),
        ("rlcore: 1", "rlcore: 1\ntrust_remote_code: true", "m.yaml:2:1: trust_remote_code"),
    ],
)  # fmt: skip
def test_code_of_models_is_allowed_in_one_place_only(bench, good, old, new, place) -> None:
    rule = "code that comes with a model is allowed by model.trust_remote_code alone; remove it here"
    problems = bench.problems(good.replace(old, new))
    assert f"{place}: {rule}" in problems
    # Nothing else is said of it but that the plugin has no such mapping.
    assert [p for p in problems if rule not in p and "unknown key 'engine'" not in p] == []


def test_code_of_models_is_allowed_there(bench, good) -> None:
    assert bench.load(good.replace("./model", "./model, trust_remote_code: true")).manifest.model.trust_remote_code


NEEDY = """
from rlcore import AlgorithmConfig, hookimpl
class Config(AlgorithmConfig):
    def needs(self): return frozenset(NEEDS)
    def defaults(self): return {"loss": "clip", "aggregate": "token-mean"}
@hookimpl
def rlcore_advantage_estimator(config: Config):
    return lambda batch: batch
"""


@pytest.fixture
def needy(make_distribution, good):
    def manifest(needs: str) -> str:
        source = NEEDY.replace("NEEDS", needs)
        make_distribution("t-dist", {"rlcore.algorithms": {"t": "t_needy"}}, {"t_needy": source})
        return good.replace("{use: grpo}", "{use: t}")

    return manifest


def test_a_critic_is_refused_with_what_is_missing(bench, needy) -> None:
    assert bench.problems(needy('{"batch:values"}')) == [
        "m.yaml:11:18: algorithm.use: algorithm t reads a critic's values; add a section "
        "`critic: {use: fsdp, lr: 1.0e-5}`"
    ]


def test_a_critic_is_asked_for_once_and_may_be_added_as_told(bench, needy) -> None:
    text = needy('{"batch:values", "role:critic"}')
    assert len(bench.problems(text)) == 1
    bench.load(text + "critic: {use: fsdp, lr: 1.0e-5}\n")


def test_a_reference_model_is_held_for_whoever_reads_its_log_probs(bench, needy) -> None:
    text = needy('{"batch:ref_logprobs", "role:reference"}')
    assert StepPlan.of(bench.load(text).manifest).reference
    assert bench.load(text + "reference: {use: fsdp}\n").manifest.reference
    (problem,) = bench.problems(needy_of_nothing(text) + "reference: {use: fsdp}\n")
    assert "nobody uses a reference model without a KL term" in problem


def needy_of_nothing(text: str) -> str:
    return text.replace("{use: t}", "{use: grpo}")


def test_a_critic_is_refused_where_nobody_reads_values(bench, needy) -> None:
    text = needy('{"batch:values", "role:critic"}') + "critic: {use: fsdp}\n"
    assert StepPlan.of(bench.load(text).manifest).critic
    assert bench.problems(needy_of_nothing(text)) == [
        "m.yaml:14:9: critic: nobody uses a critic: algorithm grpo reads no values; remove this section"
    ]
    (problem,) = bench.problems(text.replace("critic: {use: fsdp}", "critic: {use: fsdp, tokens_per_micro_batch: 299}"))
    assert problem.startswith("m.yaml:14:45: critic.tokens_per_micro_batch: must hold the longest sequence")


@pytest.mark.parametrize(
    ("keys", "overrides", "message"),
    [
        ("path: ./none", (), "critic.path: no such folder: none"),
        ("path: .", (), "critic.path: {folder} holds no config.json; it is no Hugging Face model folder"),
        ("path: ''", (), "critic.path: must be a Hugging Face id or a folder, got ''"),
        ("prompts_per_update: 2", (), "critic.prompts_per_update: the critic learns from the policy's updates; remove "
         "this, or set trainer.prompts_per_update"),
        ("epochs_per_batch: 3", (), "critic.epochs_per_batch: the critic learns from the policy's updates; remove this, "
         "or set trainer.epochs_per_batch"),
        ("warmup_steps: 5", ("run.max_steps=5",), "critic.warmup_steps: must be below run.max_steps (5), or the policy is "
         "never trained; got 5"),
        ("value_clip: 0", (), "critic.value_clip: must be a number above 0 or null, got 0; null doesn't limit it"),
        ("value_clipp: 1", (), "critic.value_clipp: unknown key 'value_clipp'; did you mean 'value_clip'?"),
        ("cliprange_value: 1", (), "critic.cliprange_value: unknown key 'cliprange_value': that is critic.value_clip here"),
        ("samples_per_prompt: 1", (), "critic.samples_per_prompt: unknown key 'samples_per_prompt': samples_per_prompt "
         "belongs in eval or rollout"),
    ],
)  # fmt: skip
def test_what_a_critic_section_may_say(bench, needy, keys, overrides, message) -> None:
    text = needy('{"batch:values"}') + "critic: {use: fsdp, " + keys + "}\n"
    (problem,) = bench.problems(text, *overrides)
    assert problem.partition(": ")[2] == message.replace("{folder}", str(bench.folder))


def test_a_critic_takes_a_trainers_keys_and_its_path_is_absolute(bench, needy) -> None:
    text = needy('{"batch:values"}') + "critic: {use: fsdp, path: ./model, epochs_per_batch: 2, lr: 1e-5}\n"
    loaded = bench.load(text, "trainer.epochs_per_batch=2", "trainer.prompts_per_update=4")
    critic = loaded.manifest.critic
    assert (critic.path, critic.lr, critic.value_clip, critic.options) == (
        str(bench.folder / "model"), 1e-5, 0.5, {"reshard_after_forward": True}
    )  # fmt: skip
    again = manifest_from_dict(loaded.resolved(), bench.folder)
    assert again.manifest == loaded.manifest
    (warning,) = bench.load(text.replace("./model, ", "model, "), "trainer.epochs_per_batch=2").warnings
    assert "critic.path: is taken for an id on the hub" in str(warning)


def test_a_trainer_without_a_value_head_is_no_critics(bench, needy) -> None:
    (bench.folder / "headless.py").write_text(
        "from rlcore import PluginConfig, hookimpl\n"
        "class Config(PluginConfig): pass\n"
        "@hookimpl\n"
        "def rlcore_train_backend(config: Config, context): return None\n"
    )
    (problem,) = bench.problems(needy('{"batch:values"}') + "critic: {use: ./headless.py}\n")
    assert problem.startswith("m.yaml:14:15: critic.use: trainer ")
    assert problem.endswith("headless.py trains no critic; it has no value head")


@pytest.mark.parametrize("column", sorted(ON_DEMAND))
def test_what_is_provided_on_demand_is_computed(bench, needy, column) -> None:
    """The checks and the plan of a step agree, for each column alone."""
    plan = StepPlan.of(bench.load(needy(f'{{"batch:{column}"}}')).manifest)
    flags = {"old_logprobs": "old_logprobs", "rollout_logprobs": "rollout_logprobs", "ref_logprobs": "reference"}
    flags["baseline_reward"] = "greedy_baseline"
    assert {name for name in flags.values() if getattr(plan, name)} == {flags[column]}
    assert not plan.critic


@pytest.mark.parametrize(
    ("column", "algorithm"),
    [
        ("token_rewards", "kl: {in: reward, coef: 0.1}"),
        ("correction", "rollout_correction: {}"),
    ],
)
def test_what_only_a_setting_brings(bench, needy, column, algorithm) -> None:
    text = needy(f'{{"batch:{column}"}}')
    (problem,) = bench.problems(text)
    assert f"algorithm t needs batch:{column}, which nothing in this run provides" in problem
    bench.load(text.replace("{use: t}", f"{{use: t, {algorithm}}}"))


def test_the_columns_of_single_rewards(bench, needy) -> None:
    (problem,) = bench.problems(needy('{"batch:reward/correct", "batch:reward/style"}'))
    assert "needs batch:reward/style, which nothing in this run provides" in problem


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("kl: {in: loss, coef: 0.1, target: 6}",
         "m.yaml:11:58: algorithm.kl.target: adapts coef for a KL in the reward; set algorithm.kl.in to reward, or remove "
         "this"),
        ("kl: {in: reward, coef: 0, target: 6}",
         "m.yaml:11:58: algorithm.kl.target: adapts coef by factors, and 0 stays 0; start algorithm.kl.coef above 0"),
        ("rollout_correction: {mode: mask, cap: 2, floor: 2}",
         "m.yaml:11:72: algorithm.rollout_correction.floor: must be below cap (2), or no token trains; got 2"),
        ("rollout_correction: {floor: 0.5}",
         "m.yaml:11:52: algorithm.rollout_correction.floor: is read with mode: mask only; truncation leaves small weights "
         "as they are"),
    ],
)  # fmt: skip
def test_what_would_be_ignored_or_train_nothing(bench, good, section, message) -> None:
    assert bench.problems(good.replace("{use: grpo}", f"{{use: grpo, {section}}}")) == [message]


def test_what_is_close_to_that_is_fine(bench, good) -> None:
    for section in (
        "kl: {in: reward, coef: 0.1, target: 6}",
        "rollout_correction: {mode: mask, cap: 2, floor: 1.9}",
        "rollout_correction: {floor: 0}",
    ):
        assert bench.load(good.replace("{use: grpo}", f"{{use: grpo, {section}}}")).warnings == ()


def test_a_correction_does_not_see_what_filters_leave_out(bench, good) -> None:
    text = good.replace("samples_per_prompt: 4", "samples_per_prompt: 4, top_p: 0.5")
    (plain,) = bench.load(text).warnings
    (corrected,) = bench.load(text.replace("{use: grpo}", "{use: grpo, rollout_correction: {}}")).warnings
    assert str(corrected) == f"{plain}, which algorithm.rollout_correction doesn't see"


def test_nobody_is_called_unused_while_readers_are_unknown(bench, good) -> None:
    """Without importing the local loss nothing is known of what it reads."""
    (bench.folder / "loss.py").write_text("raise RuntimeError")
    text = good.replace("{use: grpo}", "{use: grpo, loss: ./loss.py}") + "reference: {use: fsdp}\n"
    load_manifest(bench.write(text), load_local=False)


def test_a_loss_on_pairs_needs_room_for_two(bench, needy) -> None:
    text = needy('{"batch:reward"}') + "  "
    paired = text.replace("algorithm: {use: t}", "algorithm: {use: t, loss: ./pairs.py}")
    (bench.folder / "pairs.py").write_text(
        "from rlcore import PluginConfig, hookimpl\n"
        "class Config(PluginConfig):\n"
        "    def needs(self): return frozenset({'pairs'})\n"
        "    def provides(self): return frozenset({'pairs'})\n"
        "@hookimpl\n"
        "def rlcore_policy_loss(config: Config): return lambda inputs: None\n"
    )
    bench.load(paired, "trainer.tokens_per_micro_batch=600")
    bench.load(text, "trainer.tokens_per_micro_batch=599")
    (problem,) = bench.problems(paired, "trainer.tokens_per_micro_batch=599")
    assert "trainer.tokens_per_micro_batch: must hold a pair of the longest sequences" in problem
    assert "= 600, got 599" in problem


CONFLICTED = """
from rlcore import AlgorithmConfig, hookimpl
class Config(AlgorithmConfig):
    limit: int = 0
    '''Sentence.'''
    def conflicts(self, context):
        most = context.max_response_tokens // self.limit
        return {"limit": f"must be at most {most}"} if self.limit > most else {}
    def defaults(self): return {"loss": "clip", "aggregate": "token-mean"}
@hookimpl
def rlcore_advantage_estimator(config: Config):
    return lambda batch: batch
"""


def test_an_algorithm_says_what_does_not_fit_the_rest(bench, good, make_distribution) -> None:
    make_distribution("t-dist", {"rlcore.algorithms": {"t": "t_conflicted"}}, {"t_conflicted": CONFLICTED})
    text = good.replace("{use: grpo}", "{use: t, limit: 10}")
    bench.load(text)
    assert bench.problems(text.replace("10}", "20}")) == ["m.yaml:11:28: algorithm.limit: must be at most 10"]
    assert bench.problems(text.replace("10}", "0}")) == [
        "m.yaml:11:18: algorithm.use: algorithm t: asking what its options conflict with failed: "
        "ZeroDivisionError('integer division or modulo by zero')"
    ]


def test_dynamic_sampling_is_judged_on_a_reward_that_is_there(bench, good) -> None:
    text = good.replace("{use: grpo}", "{use: grpo, dynamic_sampling: {filter_on: corect}}")
    (problem,) = bench.problems(text)
    assert problem == (
        "m.yaml:11:54: algorithm.dynamic_sampling.filter_on: there is no reward 'corect'; the rewards are: correct"
    )
    bench.load(text.replace("corect", "correct"))
    problems = bench.problems(text.replace("corect", "correct"), "rollout.samples_per_prompt=1")
    assert any("one sample of a prompt has no spread" in problem for problem in problems)


def test_log_probs_before_the_update_are_there_for_whoever_reads_them(bench, needy) -> None:
    manifest = bench.load(needy('{"batch:old_logprobs"}')).manifest
    plan = StepPlan.of(manifest)
    assert plan.updates_per_step == 1
    assert plan.old_logprobs


def test_needs_that_raise_name_the_plugin(bench, needy) -> None:
    assert bench.problems(needy("{1/0: 1}")) == [
        "m.yaml:11:18: algorithm.use: algorithm t: asking what it needs and provides failed: "
        "ZeroDivisionError('division by zero')"
    ]


def test_ids_on_the_hub_are_left_alone(bench, good) -> None:
    assert bench.load(good.replace("./model", "Qwen/Qwen3-1.7B")).warnings == ()


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("samples_per_prompt: 4", "samples_per_prompt: 4, top_p: 0.9", "10:50: rollout.top_p", "off-policy"),
        ("samples_per_prompt: 4", "samples_per_prompt: 4, top_k: 50", "10:50: rollout.top_k", "off-policy"),
        ("{use: grpo}", "{use: grpo, kl: {in: loss, coef: 1, estimator: k1}}", "11:59: algorithm.kl.estimator",
         "expected gradient of zero"),
        ("{use: grpo}", "{use: grpo, kl: {in: loss, coef: 0}}", "11:45: algorithm.kl.coef", "switches the KL term off"),
        ("./model", "model", "3:15: model.path", "write ./model"),
        ("./model", "./model, trust_remote_code: true", "3:43: model.trust_remote_code", "will run here"),
        ("train: train.parquet", "train: train.parquet\n  val: ./train.parquet", "6:8: data.val", "trained on too"),
    ],
)  # fmt: skip
def test_warnings_stop_nothing(bench, good, old, new, place, words) -> None:
    (warning,) = bench.load(good.replace(old, new)).warnings
    assert f"m.yaml:{place}: " in str(warning)
    assert words in str(warning)


def test_sequences_longer_than_the_model_was_made_for_are_warned_of(bench, good) -> None:
    for made_for, warned in ((299, 1), (300, 0)):
        (bench.folder / "model/config.json").write_text(f'{{"max_position_embeddings": {made_for}}}')
        warnings = bench.load(good).warnings
        assert len(warnings) == warned
        assert all("may have 300 tokens, and the model was made for 299" in str(warning) for warning in warnings)


def test_k1_in_the_reward_is_no_warning(bench, good) -> None:
    assert (
        bench.load(good.replace("{use: grpo}", "{use: grpo, kl: {in: reward, coef: 1, estimator: k1}}")).warnings == ()
    )
