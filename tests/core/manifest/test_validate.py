# ruff: noqa: E501 - tables of messages
from __future__ import annotations

import pytest
from rlcore import AlgorithmConfig
from rlcore.manifest.schema import Manifest, PluginSection
from rlcore.manifest.sections import PLUGIN_SECTIONS, annotation_at, options_of
from rlcore.manifest.words import FAMILIAR, core_homes


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("prompts_per_step: 8", "prompts_per_step: ten",
         "m.yaml:6:21: data.prompts_per_step: must be a whole number above 0, got 'ten'"),
        ("prompts_per_step: 8", "prompts_per_step: '8'",
         "m.yaml:6:21: data.prompts_per_step: must be a whole number above 0, got '8'; take off the quotes"),
        ("prompts_per_step: 8", "prompts_per_step: 8.0",
         "m.yaml:6:21: data.prompts_per_step: must be a whole number above 0, got 8.0"),
        ("prompts_per_step: 8", "prompts_per_step: true",
         "m.yaml:6:21: data.prompts_per_step: must be a whole number above 0, got true"),
        ("prompts_per_step: 8", "prompts_per_step:",
         "m.yaml:6:20: data.prompts_per_step: must be a whole number above 0, got null"),
        ("  prompts_per_step: 8\n", "", "m.yaml:4:1: data.prompts_per_step: is needed: Prompts that are sampled for one step."),
        ("train: train.parquet", "train: {a: 1}", "m.yaml:5:10: data.train: must be text or a list of texts, got a mapping"),
        ("train: train.parquet", "train: [train.parquet, 3]",
         "m.yaml:5:26: data.train.1: must be text, got 3; put it in quotes"),
        ("train: train.parquet", "train: train.parquet\n  shuffle: yes",
         "m.yaml:6:12: data.shuffle: must be true or false, got 'yes'; write true"),
        ("train: train.parquet", "train: train.parquet\n  last_batch: drp",
         "m.yaml:6:15: data.last_batch: must be one of 'drop', 'short', got 'drp'; did you mean 'drop'?"),
        ("name: test", "name: 12",
         "m.yaml:2:7: name: must be text that matches ^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$, got 12; put it in quotes"),
        ("name: test", "name: a/b", "m.yaml:2:7: name: must be text that matches ^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$, got 'a/b'"),
        ("rlcore: 1", "rlcore: 2", "m.yaml:1:9: rlcore: must be 1, got 2"),
        ("{use: fsdp}", "{use: fsdp, lr: .inf}", "m.yaml:9:26: trainer.lr: must be a number that is finite, got .inf"),
        ("{use: fsdp}", "{use: fsdp, betas: [0.9]}", "m.yaml:9:29: trainer.betas: must be a list of 2 values, "
         "each a number of at least 0 and below 1, got a list"),
        ("{use: fsdp}", "{use: fsdp, betas: [0.9, 2]}", "m.yaml:9:35: trainer.betas.1: must be a number of at least 0 and below 1, got 2"),
        ("{use: fsdp}", "{lr: 1e-6}", "m.yaml:9:1: trainer.use: is needed: Name of an installed plugin, or path of a "
         "local .py file that implements the hook."),
        ("{use: fsdp}", "3", "m.yaml:9:10: trainer: must be a plugin's name or a mapping, got 3"),
        ("{use: fsdp}", "{use: [fsdp]}", "m.yaml:9:16: trainer.use: must be text, got a list"),
        ("samples_per_prompt: 4", "samples_per_prompt: 4, temperature: 0", "m.yaml:10:56: rollout.temperature: must be a "
         "number above 0, got 0; greedy decoding (0) is for eval.temperature only"),
        ("samples_per_prompt: 4", "samples_per_prompt: 4, temperature: -1", "m.yaml:10:56: rollout.temperature: must be a "
         "number above 0, got -1; greedy decoding (0) is for eval.temperature only"),
        ("{use: grpo}", "{use: grpo, kl: {in: los, coef: 1}}",
         "m.yaml:11:33: algorithm.kl.in: must be one of 'loss', 'reward', got 'los'; did you mean 'loss'?"),
        ("rewards:\n  correct: {use: gsm8k-rule-reward}", "rewards: {}", "m.yaml:12:10: rewards: must be a mapping that is "
         "not empty, got an empty mapping; name one, such as `correct: {use: NAME}`"),
    ],
)  # fmt: skip
def test_wrong_values_in_peoples_words(bench, good, old, new, message) -> None:
    assert old in good
    assert bench.problems(good.replace(old, new)) == [message]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{use: fsdp}", "{use: fsdp, lrr: 1}", "trainer.lrr: unknown key 'lrr'; did you mean 'lr'?"),
        ("{use: fsdp}", "{use: fsdp, reshard_after_forwards: true}",
         "trainer.reshard_after_forwards: unknown key 'reshard_after_forwards'; did you mean 'reshard_after_forward'?"),
        ("use: hf,", "use: hf, lr: 1,", "rollout.lr: unknown key 'lr': lr belongs in trainer"),
        ("{use: grpo}", "{use: grpo, clip_high: 0.3}",
         "algorithm.clip_high: unknown key 'clip_high': clip_high belongs in algorithm.loss"),
        ("use: hf,", "use: hf, n: 4,", "rollout.n: unknown key 'n': that is rollout.samples_per_prompt here"),
        ("{use: grpo}", "{use: grpo, kl_coef: 4}", "algorithm.kl_coef: unknown key 'kl_coef': that is algorithm.kl.coef here"),
        ("rlcore: 1", "rlcore: 1\nseed: 1", "seed: unknown key 'seed': seed belongs in run"),
        ("rlcore: 1", "rlcore: 1\nrolout: 1", "rolout: unknown key 'rolout'; did you mean 'rollout'?"),
        ("{path: ./model}", "{path: ./model, zzz: 1}",
         "model.zzz: unknown key 'zzz'; allowed: path, revision, dtype, trust_remote_code"),
        ("{use: fsdp}", "{use: fsdp, options: {}}", "trainer.options: unknown key 'options'"),
        ("rlcore: 1", "rlcore: 1\nbase: x", "base: unknown key 'base'"),
        ("use: gsm8k-rule-reward", "use: gsm8k-rule-reward, modus: x", "rewards.correct.modus: unknown key 'modus'; did you mean 'mode'?"),
    ],
)  # fmt: skip
def test_unknown_keys_say_what_was_meant(bench, good, old, new, message) -> None:
    (problem,) = bench.problems(good.replace(old, new))
    assert problem.split(": ", 1)[1].startswith(message)


def test_a_name_alone_is_a_plugin_section(bench, good) -> None:
    text = good.replace("{use: fsdp}", "fsdp").replace("{use: gsm8k-rule-reward}", "gsm8k-rule-reward")
    manifest = bench.load(
        text.replace("{use: grpo}", "{use: grpo, loss: clip}") + "run: {trackers: [console]}\n"
    ).manifest
    assert (manifest.trainer.use, manifest.rewards["correct"].use) == ("fsdp", "gsm8k-rule-reward")
    assert manifest.run.trackers == [PluginSection(use="console", options=manifest.run.trackers[0].options)]


def test_numbers_as_people_write_them(bench, good) -> None:
    assert bench.load(good.replace("{use: fsdp}", "{use: fsdp, lr: 1e-6, weight_decay: 0}")).manifest.trainer.lr == 1e-6
    assert bench.load(good.replace("{use: fsdp}", "{use: fsdp, betas: [0.9, 0.95]}")).manifest.trainer.betas == (
        0.9,
        0.95,
    )


def test_every_hint_names_keys_that_exist() -> None:
    homes = core_homes()
    for home in FAMILIAR.values():
        words = home.replace("the options of ", "").split(":")[0]
        if " " in words or "NAME" in words or words == "a tracker":
            continue
        section, _, key = words.rpartition(".")
        assert key == "use" or key in homes[section], home


def test_familiar_names_are_not_ours() -> None:
    ours = {key for keys in core_homes().values() for key in keys}
    assert not ours & set(FAMILIAR)


def test_every_section_with_use_is_in_the_table() -> None:
    def plugin_paths(annotation, path=()):
        from rlcore.manifest.sections import fields_of, is_model

        for option in options_of(annotation):
            if is_model(option):
                if issubclass(option, PluginSection):
                    yield path
                for key in fields_of(option):
                    yield from plugin_paths(annotation_at(option, (key,)), (*path, key))
            elif getattr(option, "__origin__", None) in (dict, list):
                yield from plugin_paths(option.__args__[-1], (*path, "*"))

    assert set(plugin_paths(Manifest)) == set(PLUGIN_SECTIONS)


# --- plugins that are wrong ----------------------------------------------------------------------------------------

HOOK = "@hookimpl\ndef rlcore_reward(config: Config):\n    return lambda sample: 0.0\n"
HEAD = "from enum import Enum\nfrom pathlib import Path\nfrom pydantic import field_validator, model_validator\n"
HEAD += "from pydantic import BaseModel, Field\nfrom rlcore import PluginConfig, hookimpl\n"
CHECKED = (
    HEAD
    + """
class Inner(PluginConfig):
    size: int = 1
    sizes: list[int] = []
class Colour(Enum):
    red = "red"
class Config(PluginConfig):
    low: float = 0.0
    high: float = 1.0
    even: int = 2
    pair: tuple[int, int] = (1, 2)
    file: Path = Path("x")
    colour: Colour = Colour.red
    names: set[str] = set()
    inner: Inner = Inner()
    inners: list[Inner] = []
    @field_validator("even")
    @classmethod
    def _even(cls, value):
        if value % 2:
            raise ValueError(f"{value} is odd")
        return value
    @model_validator(mode="after")
    def _ordered(self):
        if self.low > self.high:
            raise ValueError("low must be below high")
        if self.low == -1:
            raise RuntimeError("a bug")
        return self
"""
    + HOOK
)


@pytest.fixture
def reward(make_distribution, bench, good):
    """Problems of a manifest whose reward is this plugin with these options."""

    def problems(source: str, options: str = "") -> list[str]:
        make_distribution("t-dist", {"rlcore.rewards": {"t": "t_reward"}}, {"t_reward": source})
        return bench.problems(good.replace("gsm8k-rule-reward", f"t{options}"))

    return problems


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (", even: 3", "m.yaml:13:27: rewards.correct.even: 3 is odd"),
        (", low: 2", "m.yaml:13:12: rewards.correct: low must be below high"),
        (", low: -1", "m.yaml:13:12: rewards.correct: checking the options of reward/t failed: RuntimeError('a bug')"),
        (", pair: [1]", "m.yaml:13:27: rewards.correct.pair: must be a list of 2 values, each a whole number, got a list"),
        (", colour: blue", "m.yaml:13:29: rewards.correct.colour: must be one of 'red', got 'blue'"),
        (", inner: {size: x}", "m.yaml:13:35: rewards.correct.inner.size: must be a whole number, got 'x'"),
        (", inner: {siez: 1}", "m.yaml:13:29: rewards.correct.inner.siez: unknown key 'siez'; did you mean 'size'?"),
        (", inners: [{sizes: [1, x]}]",
         "m.yaml:13:42: rewards.correct.inners.0.sizes.1: must be a whole number, got 'x'"),
    ],
)  # fmt: skip
def test_a_plugins_own_checks_have_places(reward, options, message) -> None:
    assert reward(CHECKED, options) == [message]


def test_types_that_yaml_lacks_are_read_from_its_own(make_distribution, bench, good) -> None:
    make_distribution("t-dist", {"rlcore.rewards": {"t": "t_reward"}}, {"t_reward": CHECKED})
    options = "t, pair: [3, 4], file: a/b, colour: red, names: [a], inner: {size: 3}"
    section = bench.load(good.replace("gsm8k-rule-reward", options)).manifest.rewards["correct"]
    got = {key: section.options[key] for key in ("pair", "file", "colour", "names", "inner")}
    assert got == {"pair": [3, 4], "file": "a/b", "colour": "red", "names": ["a"], "inner": {"size": 3, "sizes": []}}


def test_unknown_broken_and_conflicting_plugins_point_at_use(bench, good, reward, make_distribution) -> None:
    (unknown,) = bench.problems(good.replace("gsm8k-rule-reward", "gsm8k-rule-rewrad"))
    assert unknown.startswith(
        "m.yaml:13:18: rewards.correct.use: no reward plugin 'gsm8k-rule-rewrad' is installed; did you"
    )
    (broken,) = reward("import no_such_module\n")
    assert broken.startswith("m.yaml:13:18: rewards.correct.use: reward/t ")
    assert "No module named 'no_such_module'" in broken
    make_distribution("other-dist", {"rlcore.rewards": {"t": "t_other"}}, {"t_other": CHECKED})
    (conflict,) = bench.problems(good.replace("gsm8k-rule-reward", "t"))
    assert "t-dist" in conflict
    assert "other-dist" in conflict


ALGORITHM = (
    "from rlcore import AlgorithmConfig, hookimpl\nclass Config(AlgorithmConfig):\n    x: int = 1\n{body}\n"
    "@hookimpl\ndef rlcore_advantage_estimator(config: Config):\n    return lambda batch: batch\n"
)


@pytest.fixture
def algorithm(make_distribution, bench, good):
    def problems(body: str, options: str = "") -> list[str]:
        make_distribution("t-dist", {"rlcore.algorithms": {"t": "t_algo"}}, {"t_algo": ALGORITHM.format(body=body)})
        return bench.problems(good.replace("{use: grpo}", f"{{use: t{options}}}"))

    return problems


def test_an_estimator_without_defaults(algorithm) -> None:
    loss, aggregate = sorted(algorithm(""), key=lambda line: "aggregate" in line)
    assert loss.startswith(
        "m.yaml:11:1: algorithm.loss: is needed, as algorithm t brings no default for it; installed: "
    )
    assert aggregate.startswith("m.yaml:11:1: algorithm.aggregate: is needed, as algorithm t brings no default for it")


def test_defaults_that_are_wrong(algorithm) -> None:
    assert algorithm("    def defaults(self): return {'los': 'clip'}") == [
        "m.yaml:11:18: algorithm.use: the defaults of algorithm/t hold keys that the section doesn't know: los"
    ]


def test_defaults_that_raise(algorithm) -> None:
    assert algorithm("    def defaults(self): raise KeyError('k')")[0] == (
        "m.yaml:11:18: algorithm.use: the defaults of algorithm/t failed: KeyError('k')"
    )


def test_wrong_options_of_the_algorithm_hide_no_defaults(algorithm) -> None:
    body = "    def defaults(self): return {'loss': 'clip', 'aggregate': 'token-mean'}"
    assert algorithm(body, ", x: y") == ["m.yaml:11:24: algorithm.x: must be a whole number, got 'y'"]


def test_the_plugins_base_config_has_no_defaults() -> None:
    assert AlgorithmConfig().defaults() == {}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("max_completion_length: 1", "that is data.max_response_tokens here"),
        ("max_prompt_length: 1", "that is data.max_prompt_tokens here"),
        ("report_to: wandb", "that is run.trackers here"),
        ("bf16: true", "that is model.dtype: bfloat16 here"),
        ("peft: {}", "LoRA is not supported yet, all weights train"),
        ("lora: {}", "LoRA is not supported yet, all weights train"),
        ("per_device_train_batch_size: 1", "that is trainer.tokens_per_micro_batch here"),
        (
            "gradient_accumulation_steps: 1",
            "it follows from trainer.prompts_per_update and trainer.tokens_per_micro_batch",
        ),
        ("nnodes: 1", "a run is one process on one device so far, and resources.device chooses it"),
        ("n_gpus_per_node: 1", "a run is one process on one device so far, and resources.device chooses it"),
        ("gpus: 1", "a run is one process on one device so far, and resources.device chooses it"),
        ("optimizer: adamw", "AdamW is the one there is"),
    ],
)
def test_keys_of_other_systems_are_translated(bench, good, line: str, told: str) -> None:
    (problem,) = bench.problems(good + line + "\n")
    assert problem.endswith(f"unknown key {line.partition(':')[0]!r}: {told}")


@pytest.mark.parametrize(
    ("value", "told"), [("'1e-6'", "take off the quotes"), ("1_0.5", "take off the quotes and underscores")]
)
def test_a_number_in_quotes_is_told_what_to_take_off(bench, good, value: str, told: str) -> None:
    (problem,) = bench.problems(good, f"trainer.lr={value}")
    assert problem.endswith(f"; {told}")
