"""Whatever is in the file, the answer is a manifest or a ManifestError."""

from __future__ import annotations

import contextlib
import copy
import functools

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rlcore.errors import ManifestError
from rlcore.manifest import validate
from rlcore.manifest.load import load_manifest, manifest_from_dict
from rlcore.manifest.words import core_homes
from rlcore.plugins.loading import config_class

KEYS = sorted(
    {key for keys in core_homes().values() for key in keys} | {"use", "options", "base", "extends", "<<", "0"}
)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(["fsdp", "hf", "grpo", "clip", "console", "./x.py", "../", "trust_remote_code", "1e-6"])
)  # fmt: skip
GARBAGE = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=10,
)
GOOD = {
    "rlcore": 1,
    "name": "x",
    "model": {"path": "org/name"},
    "data": {"train": "x.parquet", "prompts_per_step": 1, "max_prompt_tokens": 1, "max_response_tokens": 1},
    "trainer": {"use": "fsdp"},
    "rollout": {"use": "hf", "samples_per_prompt": 2},
    "algorithm": {"use": "grpo", "loss": {"use": "clip"}, "kl": {"in": "loss", "coef": 0.1}},
    "rewards": {"r": {"use": "gsm8k-rule-reward"}},
    "eval": {"k": [1]},
    "run": {"trackers": ["console", {"use": "jsonl"}]},
}
PLACES = """
data data.train data.columns model.path trainer trainer.use trainer.betas reference rollout.stop algorithm
algorithm.loss algorithm.kl algorithm.kl.in rewards rewards.r eval eval.k run run.trackers run.folder
"""
PATHS = [tuple(place.split(".")) for place in PLACES.split()]
SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def plugins_are_looked_up_once(monkeypatch) -> None:
    monkeypatch.setattr(validate, "config_class", functools.cache(config_class))


@SETTINGS
@given(path=st.sampled_from(PATHS), value=GARBAGE, overrides=st.lists(st.text(max_size=12), max_size=2))
def test_one_wrong_value(tmp_path, path, value, overrides) -> None:
    values = copy.deepcopy(GOOD)
    section = values
    for key in path[:-1]:
        section = section.setdefault(key, {})
    section[path[-1]] = value
    with contextlib.suppress(ManifestError):
        manifest_from_dict(values, tmp_path)
    file = tmp_path / "m.yaml"
    file.write_text(yaml.safe_dump(values))
    with contextlib.suppress(ManifestError):
        load_manifest(file, overrides)


@SETTINGS
@given(GARBAGE)
def test_anything_as_a_manifest(tmp_path, value) -> None:
    if isinstance(value, dict):
        with contextlib.suppress(ManifestError):
            manifest_from_dict(value, tmp_path)


@SETTINGS
@given(st.binary(max_size=60) | st.text("{}[]:,&*!|>'\"%@`#-? \n\tab1<", max_size=40).map(str.encode))
def test_any_bytes(tmp_path, data) -> None:
    file = tmp_path / "m.yaml"
    file.write_bytes(data)
    with contextlib.suppress(ManifestError):
        load_manifest(file)


@SETTINGS
@given(st.text("abcdefglnrtuvo.0123456789=[]{}:, -", max_size=30))
def test_any_override(tmp_path, override) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(yaml.safe_dump(GOOD))
    with contextlib.suppress(ManifestError):
        load_manifest(file, [override])
