from __future__ import annotations

import yaml
from hypothesis import given
from hypothesis import strategies as st
from rlcore.manifest.nodes import plain
from rlcore.manifest.reader import read_yaml
from rlcore.manifest.render import flow, render_resolved

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_values_are_read_as_they_were_written(value) -> None:
    problems: list = []
    node = read_yaml(flow(value), "f", problems)
    assert not problems
    assert node is not None
    assert plain(node) == value


@given(TEXT | st.floats(allow_nan=False, allow_infinity=False))
def test_readers_of_yaml_1_1_agree(value) -> None:
    assert yaml.safe_load(flow(value)) == value


def test_every_value_has_its_source(bench, good) -> None:
    lines = render_resolved(bench.load(good, "trainer.lr=5e-7")).splitlines()
    sources = {line.split("#")[0].strip(): line.split("#")[1].strip() for line in lines if "#" in line}
    assert sources["prompts_per_step: 8"] == f"{bench.folder}/m.yaml:6:21"
    assert sources["lr: 5.0e-07"] == "--set trainer.lr"
    assert sources["aggregate: seq-mean-token-mean"] == "default of grpo"
    assert sources["seed: 0"] == "default"
    assert all(line.rstrip().endswith(":") for line in lines if "#" not in line)
