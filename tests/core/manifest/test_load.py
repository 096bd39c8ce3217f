from __future__ import annotations

import json

import pytest
from rlcore.errors import ManifestError
from rlcore.manifest.load import load_manifest, manifest_from_dict
from rlcore.manifest.nodes import Source
from rlcore.manifest.render import render_resolved


def test_a_good_manifest_has_plugins_options_and_the_algorithms_defaults(bench) -> None:
    loaded = bench.load()
    manifest = loaded.manifest
    assert manifest.rollout.plugin("rollout").options["max_rows"] == 512  # HfEngine's own default
    assert manifest.algorithm.aggregate == "seq-mean-token-mean"  # GRPO, equation 3
    assert manifest.algorithm.loss is not None
    assert manifest.algorithm.loss.use == "clip"
    assert [tracker.use for tracker in manifest.run.trackers] == ["console", "jsonl"]
    assert manifest.data.train == str(bench.folder / "train.parquet")
    assert loaded.warnings == ()


def test_the_algorithms_defaults_follow_its_options_and_give_way(bench, good) -> None:
    dr = good.replace("{use: grpo}", "{use: grpo, normalize: none}")
    assert bench.load(dr).manifest.algorithm.aggregate == "seq-mean-token-sum-norm"
    own = good.replace("{use: grpo}", "{use: grpo, aggregate: token-mean, loss: {clip_high: 0.28}}")
    manifest = bench.load(own).manifest
    assert manifest.algorithm.aggregate == "token-mean"
    assert manifest.algorithm.loss is not None
    assert (manifest.algorithm.loss.use, manifest.algorithm.loss.options["clip_high"]) == ("clip", 0.28)


def test_sources(bench, good) -> None:
    loaded = bench.load(good, "trainer.lr=1")
    file = str(bench.folder / "m.yaml")
    assert loaded.source_of(("rewards", "correct", "use")) == Source(file, 13, 18)
    assert str(loaded.source_of(("trainer", "lr"))) == "--set trainer.lr"
    assert str(loaded.source_of(("algorithm", "loss", "use"))) == "default of grpo"
    assert str(loaded.source_of(("algorithm", "loss", "clip_low"))) == "default"
    assert str(loaded.source_of(("run", "trackers"))) == "default"


FULL = """
reference: {use: fsdp, offload: {params: true}}
eval: {samples_per_prompt: 4, temperature: 0.7, k: [1, 2, 4]}
run: {eval_first: true, trackers: [jsonl, {use: console}], folder: ./out}
"""


def full(good: str) -> str:
    text = good.replace("{use: grpo}", "{use: grpo, kl: {in: loss, coef: 0.001}}") + FULL
    return text.replace(
        "  prompts_per_step", "  val: [val.parquet]\n  columns: {ground_truth: null}\n  prompts_per_step"
    )


def test_what_is_resolved_loads_to_an_equal_manifest(bench, good, tmp_path_factory) -> None:
    for text in (good, full(good)):
        loaded = bench.load(text)
        values = loaded.resolved()
        again = manifest_from_dict(json.loads(json.dumps(values)), bench.folder)
        assert again.manifest == loaded.manifest
        assert again.resolved() == values
        # A null that is written out there is no default: see ColumnsSection.
        assert again.manifest.data.columns.model_fields_set == loaded.manifest.data.columns.model_fields_set
        # Saved anywhere else it means the same.
        elsewhere = tmp_path_factory.mktemp("elsewhere") / "saved.yaml"
        elsewhere.write_text(render_resolved(loaded))
        assert load_manifest(elsewhere).resolved() == values


def test_resolved_holds_every_key(bench) -> None:
    values = bench.load().resolved()
    assert values["rollout"]["prefill_tokens"] == 16384
    assert values["algorithm"]["loss"] == {"use": "clip", "clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0}
    assert values["algorithm"]["kl"] is None
    assert "options" not in json.dumps(values)
    assert "base" not in values


def test_every_problem_is_reported_at_once_in_order(bench, good) -> None:
    text = good.replace("prompts_per_step: 8", "prompts_per_step: ten\n  train_batch_size: 8\n  val: none.parquet")
    text = text.replace("{use: fsdp}", "{use: fspd}").replace("samples_per_prompt: 4", "samples_per_prompt: 4, lr: 1")
    assert [
        line.split(": ")[0] + ": " + line.split(": ")[1] for line in bench.problems(text + "run: {epochs: 0}\n")
    ] == [
        "m.yaml:6:21: data.prompts_per_step",
        "m.yaml:7:3: data.train_batch_size",
        "m.yaml:11:16: trainer.use",
        "m.yaml:12:43: rollout.lr",
        "m.yaml:16:15: run.epochs",
    ]


def test_checks_over_sections_run_beside_wrong_optional_values(bench, good) -> None:
    problems = bench.problems(good.replace("train.parquet", "none.parquet") + "run: {epochs: 0}\n")
    assert problems == [
        "m.yaml:5:10: data.train: no such file: none.parquet",
        "m.yaml:14:15: run.epochs: must be a whole number above 0, got 0",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "m.yaml:1:1: the manifest is empty; it starts with 'rlcore: 1'"),
        ("# nothing\n", "m.yaml:1:1: the manifest is empty; it starts with 'rlcore: 1'"),
        ("- a\n", "m.yaml:1:1: a manifest is a mapping of keys such as 'rlcore: 1'"),
        ("hello", "m.yaml:1:1: a manifest is a mapping of keys such as 'rlcore: 1'"),
    ],
)
def test_what_is_no_mapping(bench, text, message) -> None:
    assert bench.problems(text) == [message]


def test_files_that_cant_be_read(tmp_path) -> None:
    with pytest.raises(ManifestError, match=r"none\.yaml: no such file$"):
        load_manifest(tmp_path / "none.yaml")
    with pytest.raises(ManifestError, match="is a directory"):
        load_manifest(tmp_path)


def test_an_empty_mapping_says_what_is_needed(tmp_path) -> None:
    with pytest.raises(ManifestError) as caught:
        manifest_from_dict({}, tmp_path)
    needed = [line.split(": ")[1] for line in str(caught.value).splitlines() if "is needed" in line]
    assert needed == ["algorithm", "data", "model", "name", "rewards", "rlcore", "rollout", "trainer"]


def test_local_plugins(bench, good) -> None:
    (bench.folder / "my_reward.py").write_text(
        "from rlcore import PluginConfig, hookimpl\n"
        "class Config(PluginConfig):\n    max_words: int = 50\n"
        "@hookimpl\ndef rlcore_reward(config: Config):\n    return lambda sample: 1.0\n"
    )
    text = good.replace("gsm8k-rule-reward", "./my_reward.py, max_words: 7")
    path = str(bench.folder / "my_reward.py")
    assert bench.load(text).manifest.rewards["correct"].plugin("reward").name == path
    assert bench.load(text).manifest.rewards["correct"].options == {"max_words": 7}
    assert bench.problems(text.replace("max_words", "maxwords")) == [
        "m.yaml:13:34: rewards.correct.maxwords: unknown key 'maxwords'; did you mean 'max_words'?"
    ]
    # Without importing it, nothing is known of its options.
    (bench.folder / "my_reward.py").write_text("raise SystemExit('imported')")
    loaded = load_manifest(bench.write(text.replace("max_words", "maxwords")), load_local=False)
    assert loaded.unloaded == {("rewards", "correct"): path}
    assert loaded.manifest.rewards["correct"].options == {"maxwords": 7}
    missing = text.replace("my_reward", "no_reward")
    assert bench.problems(missing, load_local=False) == [
        "m.yaml:13:18: rewards.correct.use: no plugin file no_reward.py; "
        "paths in a manifest are relative to the manifest's folder"
    ]
