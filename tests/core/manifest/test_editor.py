from __future__ import annotations

import pytest
from rlcore.manifest.editor import manifest_schema


@pytest.fixture(scope="module")
def schema():
    values, broken = manifest_schema()
    assert broken == []
    return values


def mapping(schema, section: str):
    return schema["$defs"][section]["anyOf"][1]


def test_references_lead_somewhere(schema) -> None:
    def references(value):
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                yield value["$ref"]
            for item in value.values():
                yield from references(item)
        elif isinstance(value, list):
            for item in value:
                yield from references(item)

    found = set(references(schema))
    assert found
    assert {f"#/$defs/{name}" for name in schema["$defs"]} >= found


def test_what_is_internal_is_left_out(schema) -> None:
    assert "base" not in schema["else"]["properties"]
    for name in ("TrainerSection", "RolloutSection", "LossSection"):
        assert "options" not in mapping(schema, name)["properties"]


def test_options_depend_on_use(schema) -> None:
    section = mapping(schema, "AlgorithmSection")
    rules = {rule["if"]["properties"]["use"]["const"]: rule["then"] for rule in section["allOf"]}
    assert rules["grpo"]["properties"]["normalize"]["enum"] == ["group", "batch", "none"]
    assert "kl" in rules["grpo"]["properties"]
    assert rules["grpo"]["additionalProperties"] is False
    assert "grpo" in section["properties"]["use"]["anyOf"][0]["enum"]
    loss = {rule["if"]["properties"]["use"]["const"]: rule["then"] for rule in mapping(schema, "LossSection")["allOf"]}
    assert "clip_high" in loss["clip"]["properties"]
    assert schema["$defs"]["RunSection"]["properties"]["trackers"]["items"] == {"$ref": "#/$defs/TrackerSection"}


def test_keys_are_described(schema) -> None:
    assert mapping(schema, "TrainerSection")["properties"]["lr"]["description"] == "Peak learning rate."


def test_what_is_required_gives_way_to_extends(schema) -> None:
    assert "prompts_per_step" in schema["$defs"]["DataSection"]["required"]
    assert "required" not in schema["$defs"]["partial.DataSection"]
    assert schema["then"]["properties"]["model"]["$ref"] == "#/$defs/partial.ModelSection"
    rules = mapping(schema, "partial.TrainerSection")["allOf"]
    assert all(rule["if"]["required"] == ["use"] for rule in rules)


def test_broken_plugins_are_named_and_left_out(make_distribution) -> None:
    make_distribution("t-dist", {"rlcore.rewards": {"t": "t_reward"}}, {"t_reward": "import no_such_module"})
    values, (broken,) = manifest_schema()
    assert "no_such_module" in broken
    assert "t" in mapping(values, "RewardSection")["properties"]["use"]["anyOf"][0]["enum"]


NESTED = """
from rlcore import PluginConfig, hookimpl
class Inner(PluginConfig):
    size: int = 1
class Config(PluginConfig):
    inner: Inner = Inner()
@hookimpl
def rlcore_reward(config: Config):
    return lambda sample: 0.0
"""


def test_models_inside_options_are_kept_apart(make_distribution) -> None:
    make_distribution("t-dist", {"rlcore.rewards": {"t": "t_reward"}}, {"t_reward": NESTED})
    values, _ = manifest_schema()
    assert values["$defs"]["reward.t.Inner"]["properties"]["size"]["type"] == "integer"


def test_a_validator_agrees(schema, bench, good) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    from rlcore.manifest.nodes import plain
    from rlcore.manifest.reader import read_yaml

    validator = jsonschema.Draft7Validator(schema)

    def errors(text: str):
        return [error.message for error in validator.iter_errors(plain(read_yaml(text, "f", [])))]

    assert errors(good) == []
    assert list(validator.iter_errors(bench.load(good).resolved())) == []
    assert errors("extends: x.yaml\ntrainer: {lr: 1.0}\n") == []
    assert errors(good.replace("{use: fsdp}", "fsdp")) == []
    assert errors(good.replace("{use: fsdp}", "{use: ./t.py, anything: 1}")) == []
    for wrong in ("{use: fsdp, lrr: 1}", "{use: fsdp, lr: x}", "{lr: 1.0}", "3"):
        assert errors(good.replace("{use: fsdp}", wrong)), wrong
