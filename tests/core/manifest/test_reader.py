# ruff: noqa: E501 - tables of messages
from __future__ import annotations

import math

import pytest
from rlcore.manifest.nodes import Problem, Source, plain
from rlcore.manifest.reader import MAX_NODES, decode, read_yaml


def read(text: str):
    problems: list[Problem] = []
    node = read_yaml(text, "f", problems)
    assert not problems, problems
    return plain(node)


def fail(text: str) -> list[str]:
    problems: list[Problem] = []
    read_yaml(text, "f", problems)
    assert problems
    return [str(p) for p in problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("5e-7", 5e-7),
        ("1.0e-6", 1e-6),
        ("1E5", 1e5),
        (".5", 0.5),
        ("3.", 3.0),
        ("-3", -3),
        ("012", 12),
        ("0o12", 10),
        ("0x1F", 31),
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("Off", "Off"),
        ("12:30", "12:30"),
        ("2024-01-31", "2024-01-31"),
        ("1_000", "1_000"),
        ("null", None),
        ("~", None),
        ("", None),
        ("'1'", "1"),
        ('"true"', "true"),
        ("1e", "1e"),
        ("e5", "e5"),
        ("-.inf", -math.inf),
        ("!!str 12", "12"),
        ("=", "="),
        ("a: {b: [1, {c: d}]}", {"a": {"b": [1, {"c": "d"}]}}),
        ("on: 1", {"on": 1}),
    ],
)
def test_scalars_follow_yaml_1_2(text, value) -> None:
    got = read(text)
    assert got == value
    assert type(got) is type(value)


def test_not_a_number_is_a_number() -> None:
    assert math.isnan(read(".nan"))


def test_every_value_and_key_has_its_place() -> None:
    node = read_yaml("a: 1\nb:\n  - x\n  - {c: d}\n", "f", [])
    assert node is not None
    assert (node.get("a").source, node.get("a").key) == (Source("f", 1, 4), Source("f", 1, 1))
    assert node.get("b", 0).source == Source("f", 3, 5)
    assert (node.get("b", 1, "c").source, node.get("b", 1, "c").key) == (Source("f", 4, 9), Source("f", 4, 6))


def test_anchors_aliases_and_merge_keys() -> None:
    text = "a: &x {p: 1, q: 2}\nb: *x\nc: {<<: *x, q: 3}\nd: {<<: [{p: 5}, *x]}\n'<<': kept"
    assert read(text) == {
        "a": {"p": 1, "q": 2},
        "b": {"p": 1, "q": 2},
        "c": {"p": 1, "q": 3},
        "d": {"p": 5, "q": 2},  # the first of a list of merged mappings wins
        "<<": "kept",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "f:3:1: the key 'a' is given twice; first at f:1:1"),
        ("x: {a: 1, a: 2}", "f:1:11: the key 'a' is given twice; first at f:1:5"),
        ("a:\n\tb: 1", "f:2:1: not YAML: a tab can't indent; use spaces"),
        ("a: [1,", "f:1:7: not YAML: expected the node content, but found '<stream end>' while parsing a flow node"),
        ("a: b: c", "f:1:5: not YAML: a second ': ' on one line, or a wrong indent; put text that holds ': ' in quotes"),
        ("a: 1\n  b: 2", "f:2:4: not YAML: a second ': ' on one line, or a wrong indent; put text that holds ': ' in quotes"),
        ("a: 1\n---\nb: 2", "f:2:1: a second document starts here; a manifest is one document"),
        ("a: 1\nb: \x07", "f:2:4: the character U+0007 can't stand in YAML"),
        ("a: *x", "f:1:4: not YAML: found undefined alias 'x'"),
        ("a: &x [*x]", "f:1:4: an alias inside the value that it stands for"),
        ("1: x", "f:1:1: the key 1 is no text; put it in quotes"),
        ("? [a]\n: x", "f:1:3: the key is no text; put it in quotes"),
        ("<<: 3", "f:1:5: '<<' takes a mapping (an alias of one), or a list of them"),
        ("a: !!python/object/apply:os.system [ls]",
         "f:1:4: the tag tag:yaml.org,2002:python/object/apply:os.system is not allowed; write plain values"),
        ("a: !env HOME", "f:1:4: the tag !env is not allowed; write plain values"),
        ("a: !!int x", "f:1:4: 'x' can't be read as int"),
        ('a: "\\uD800"', "f:1:4: '\\ud800' can't be read as str"),
        ("a: " + "9" * 5000, f"f:1:4: '{'9' * 40}' can't be read as int"),
    ],
)  # fmt: skip
def test_what_is_refused(text, message) -> None:
    assert fail(text) == [message]


def test_aliases_that_multiply_are_stopped() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    (message,) = fail("\n".join(lines))
    assert f"more than {MAX_NODES} values" in message


def test_deep_nesting_is_stopped() -> None:
    assert fail("[" * 5000) == ["f:1:1: nested too deeply"]


def test_a_file_must_be_utf_8() -> None:
    problems: list[Problem] = []
    assert decode(b"a: 1\nb: caf\xe9", "f", problems) is None
    assert [str(p) for p in problems] == ["f:2:7: not UTF-8 text (byte 0xe9); save it as UTF-8"]
    assert decode("\ufeffa: é".encode(), "f", problems) == "a: é"
