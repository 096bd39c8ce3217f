import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rlcore.run.record import annotated_yaml

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), VALUES, min_size=1))
def test_yaml_reads_back_what_was_written(values: dict[str, object]) -> None:
    sources = {key: f"a.yaml:1:1 {key}" for key in values}
    assert yaml.safe_load(annotated_yaml(values, sources)) == values


def test_one_value_a_line_with_its_source() -> None:
    text = annotated_yaml({"a": {"b": 1, "c": ["x", None]}, "d": {}, "e": "yes"}, {"a.b": "m.yaml:2:3", "e": "default"})
    assert text == "a:\n  b: 1  # m.yaml:2:3\n  c: [x, null]\nd: {}\ne: 'yes'  # default\n"
