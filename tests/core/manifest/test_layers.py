from __future__ import annotations

import pytest
from rlcore.manifest.layers import merge
from rlcore.manifest.load import load_manifest
from rlcore.manifest.nodes import Source, node_of, plain

HERE = Source("x")


def test_mappings_merge_and_everything_else_replaces() -> None:
    base = node_of({"a": {"b": 1, "c": 2}, "l": [1, 2], "n": {"x": 1}}, HERE)
    over = node_of({"a": {"c": 3, "d": 4}, "l": [3], "n": None}, HERE)
    assert plain(merge(base, over)) == {"a": {"b": 1, "c": 3, "d": 4}, "l": [3], "n": None}


def test_another_plugin_drops_the_options_of_the_first_and_keeps_core_keys() -> None:
    base = node_of({"rollout": {"use": "hf", "samples_per_prompt": 4, "max_rows": 9}}, HERE)
    over = node_of({"rollout": {"use": "vllm", "gpu_memory_utilization": 0.6}}, HERE)
    assert plain(merge(base, over)) == {
        "rollout": {"use": "vllm", "samples_per_prompt": 4, "gpu_memory_utilization": 0.6}
    }
    same = node_of({"rollout": {"use": "hf"}}, HERE)
    assert plain(merge(base, same))["rollout"]["max_rows"] == 9


@pytest.mark.parametrize("path", [("rewards", "r"), ("algorithm", "loss")])
def test_options_are_dropped_in_nested_sections_too(path) -> None:
    outer, inner = path
    base = node_of({outer: {inner: {"use": "a", "x": 1}}}, HERE)
    over = node_of({outer: {inner: {"use": "b"}}}, HERE)
    assert plain(merge(base, over)) == {outer: {inner: {"use": "b"}}}


def test_extends_inherits_recursively(bench, good) -> None:
    bench.write(good, "base/root.yaml", model="{path: ../model}")
    bench.write(
        "extends: root.yaml\nname: middle\ntrainer: {lr: 1e-4}\ndata: {train: ../train.parquet}", "base/middle.yaml"
    )
    top = bench.write("extends: base/middle.yaml\nname: top\nrollout: {samples_per_prompt: 16}", "top.yaml")
    loaded = load_manifest(top)
    manifest = loaded.manifest
    assert (manifest.name, manifest.trainer.lr, manifest.rollout.samples_per_prompt) == ("top", 1e-4, 16)
    assert manifest.model.path == str(bench.folder / "model")  # relative to the file that says so
    assert manifest.run_folder == bench.folder / "runs/top"
    assert loaded.source_of(("trainer", "lr")) == Source(str(bench.folder / "base/middle.yaml"), 3, 15)


def test_of_several_bases_the_later_is_on_top(bench, good) -> None:
    bench.write(good, "a.yaml")
    bench.write("name: b\ntrainer: {lr: 0.5}", "b.yaml")
    assert bench.load("extends: [a.yaml, b.yaml]\n").manifest.trainer.lr == 0.5
    assert bench.load("extends: [b.yaml, a.yaml]\n").manifest.name == "test"


def test_a_circle_is_named(bench) -> None:
    bench.write("extends: m.yaml", "b.yaml")
    assert (
        bench.problems("extends: b.yaml\n")[0] == "b.yaml:1:10: extends: extends in a circle: m.yaml → b.yaml → m.yaml"
    )
    assert "extends in a circle: m.yaml → m.yaml" in bench.problems("extends: m.yaml\n")[0]


def test_mistakes_of_extends(bench, good) -> None:
    assert bench.problems(f"extends: [no.yaml]\n{good}") == ["m.yaml:1:11: extends: no such file: no.yaml"]
    assert bench.problems(f"extends: 3\n{good}") == [
        "m.yaml:1:10: extends: must be a file or a list of files, relative to this one"
    ]
    bench.write("a: [", "broken.yaml")
    assert bench.problems(f"extends: broken.yaml\n{good}")[0].startswith("broken.yaml:1:5: not YAML")


# --- --set ---------------------------------------------------------------------------------------------------------


def test_set_overrides(bench) -> None:
    loaded = bench.load(
        "rlcore: 1\n" + bench.write().read_text().split("\n", 1)[1],
        "trainer.lr=5e-7",
        "rewards.correct.weight=2",
        "run.trackers=[jsonl]",
        "algorithm.loss.clip_high=0.3",
        "eval.k=[1, 4]",
        "eval.k.1=2",
        "eval.samples_per_prompt=4",
        "eval.temperature=1",
        "trainer.max_grad_norm=",
    )
    manifest = loaded.manifest
    assert manifest.trainer.lr == 5e-7
    assert manifest.rewards["correct"].weight == 2
    assert [tracker.use for tracker in manifest.run.trackers] == ["jsonl"]
    assert manifest.algorithm.loss is not None
    assert manifest.algorithm.loss.options["clip_high"] == 0.3
    assert manifest.eval.k == [1, 2]
    assert manifest.trainer.max_grad_norm is None
    assert str(loaded.source_of(("trainer", "lr"))) == "--set trainer.lr"


def test_set_use_drops_the_other_plugins_options(bench, make_distribution) -> None:
    source = "from rlcore import hookimpl\n@hookimpl\ndef rlcore_reward():\n    return lambda sample: 0.0\n"
    make_distribution("d", {"rlcore.rewards": {"plain": "plain_reward"}}, {"plain_reward": source})
    text = (
        bench.write().read_text().replace("use: gsm8k-rule-reward", "use: gsm8k-rule-reward, mode: flexible, weight: 3")
    )
    reward = bench.load(text, "rewards.correct.use=plain").manifest.rewards["correct"]
    assert (reward.use, reward.weight, reward.options) == ("plain", 3, {})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.lrr=1", "--set trainer.lrr: unknown key 'lrr'; did you mean 'lr'?"),
        ("trainer.lr=x", "--set trainer.lr: must be a number above 0, got 'x'"),
        ("trainer.lr", "--set trainer.lr: write --set KEY=VALUE, such as trainer.lr=5e-7"),
        ("trainer..lr=1", "--set trainer..lr=1: write --set KEY=VALUE, such as trainer.lr=5e-7"),
        ("=1", "--set =1: write --set KEY=VALUE, such as trainer.lr=5e-7"),
        ("data.train.3=x", "--set data.train.3: data.train is a list of 1; name an item by its number"),
        ("trainer.betas=[0.9,", "--set trainer.betas: not YAML: expected the node content, but found '<stream end>' "
                                "while parsing a flow node"),
        ("name.x=1", "--set name.x: name: must be text that matches ^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$, got a mapping"),
        ("rollout.use=hff", "--set rollout.use: no rollout plugin 'hff' is installed; did you mean 'hf'?"),
    ],
)  # fmt: skip
def test_mistakes_of_set(bench, good, override, message) -> None:
    text = good.replace("train: train.parquet", "train: [train.parquet]")
    (problem,) = bench.problems(text, override)
    assert problem.startswith(message)


TWO_REWARDS = """\
rlcore: 1
extends: m.yaml
name: two
rewards:
  short: {use: ./short.py}
"""


def test_null_removes_a_reward_that_is_extended_or_set(bench, good) -> None:
    (bench.folder / "short.py").write_text(
        "from rlcore import hookimpl\n@hookimpl\ndef rlcore_reward():\n    return len\n"
    )
    bench.write(good)
    two = bench.write(TWO_REWARDS, "two.yaml")
    assert list(load_manifest(two).manifest.rewards) == ["correct", "short"]
    assert list(load_manifest(two, ["rewards.correct=null"]).manifest.rewards) == ["short"]
    assert list(load_manifest(two, ["rewards={correct: null}"]).manifest.rewards) == ["short"]
    one = bench.write(TWO_REWARDS + "  correct: null\n", "one.yaml")
    assert list(load_manifest(one).manifest.rewards) == ["short"]
    again = bench.write("extends: one.yaml\nrewards: {correct: {use: gsm8k-rule-reward}}\n", "again.yaml")
    assert sorted(load_manifest(again).manifest.rewards) == ["correct", "short"]


def test_a_null_removes_it_from_every_file_that_is_extended(bench, good) -> None:
    bench.write(good)
    bench.write("rewards: {correct: {use: gsm8k-rule-reward, weight: 2}}\n", "more.yaml")
    top = "extends: [m.yaml, more.yaml]\nrewards: {correct: null, other: {use: gsm8k-rule-reward}}\n"
    assert list(load_manifest(bench.write(top, "top.yaml")).manifest.rewards) == ["other"]


def test_null_for_a_reward_that_is_not_there_is_an_error(bench, good) -> None:
    (problem,) = bench.problems(good, "rewards.corect=null")
    assert problem.startswith("--set rewards.corect: must be a plugin's name or a mapping, got null")
