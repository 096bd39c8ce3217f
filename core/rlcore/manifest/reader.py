"""YAML text to nodes: the core schema of YAML 1.2, duplicate keys refused, no tags, every value with its place.

PyYAML's own resolver follows YAML 1.1, where ``1e-6`` is a text, ``no`` is false, ``012`` is 10, ``12:30`` is 750.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from rlcore.manifest.nodes import Node, Problem, Source

# Ten times the size of any sensible manifest; stops aliases that multiply.
MAX_NODES = 20_000
# Far more than any manifest needs, and no more than JSON, pydantic and recursion take.
MAX_DEPTH = 50
_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """SafeLoader's scanner and parser with YAML 1.2's idea of which plain words are not text."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - as PyYAML declares it


for _name, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.")),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern})\Z"), _first)


def decode(data: bytes, name: str, problems: list[Problem]) -> str | None:
    """A file's bytes as text; None and a problem where they are not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
        problems.append(
            Problem(_place(name, before), (), f"not UTF-8 text (byte 0x{data[error.start]:02x}); save it as UTF-8")
        )
        return None


def read_yaml(text: str, name: str, problems: list[Problem], *, fixed: Source | None = None) -> Node | None:
    """The nodes of one YAML document; None, and a problem, where the text is no YAML.

    ``name`` is what positions are printed with. With ``fixed`` every value has that place (for ``--set``).
    """

    def fail(source: Source, message: str) -> None:
        problems.append(Problem(fixed or source, (), message))

    try:
        root = yaml.compose(text, _Loader)
        if root is None:
            return Node(None, fixed or Source(name, 1, 1))
        return _Converter(name, problems, fixed).convert(root)
    except yaml.reader.ReaderError as error:
        fail(_place(name, text[: error.position]), f"the character U+{int(error.character):04X} can't stand in YAML")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        source = Source(name, mark.line + 1, mark.column + 1) if mark else Source(name)
        fail(source, _syntax_message(error))
    except _Refused as error:
        fail(error.source, error.message)
    except RecursionError:
        fail(Source(name, 1, 1), "nested too deeply")
    except ValueError as error:  # PyYAML lets an escape such as "\UFFFFFFFF" through to chr()
        fail(Source(name, 1, 1), f"not YAML: {error}")
    return None


def _place(name: str, before: str) -> Source:
    lines = before.split("\n")
    return Source(name, len(lines), len(lines[-1]) + 1)


def _syntax_message(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "it can't be read"
    if "'\\t'" in problem:
        return "not YAML: a tab can't indent; use spaces"
    if "another document" in problem:
        return "a second document starts here; a manifest is one document"
    if "mapping values are not allowed" in problem:
        return "not YAML: a second ': ' on one line, or a wrong indent; put text that holds ': ' in quotes"
    if "expected <block end>" in problem:
        return "not YAML: this line is not indented like its neighbours"
    context = f" {error.context}" if error.context else ""
    return f"not YAML: {problem}{context}"


class _Refused(Exception):  # noqa: N818 - never leaves this module
    """YAML that is valid but has no place in a manifest."""

    def __init__(self, source: Source, message: str) -> None:
        self.source, self.message = source, message


class _Converter:
    """PyYAML's nodes to ours."""

    def __init__(self, name: str, problems: list[Problem], fixed: Source | None) -> None:
        self.name, self.problems, self.fixed = name, problems, fixed
        self.open: set[int] = set()
        self.count = 0

    def source(self, node: yaml.Node) -> Source:
        return self.fixed or Source(self.name, node.start_mark.line + 1, node.start_mark.column + 1)

    def convert(self, node: yaml.Node, key: Source | None = None) -> Node:
        source = self.source(node)
        self.count += 1
        if self.count > MAX_NODES:
            raise _Refused(source, f"more than {MAX_NODES} values; aliases that multiply?")
        if id(node) in self.open:
            raise _Refused(source, "an alias inside the value that it stands for")
        if len(self.open) > MAX_DEPTH:
            raise _Refused(source, f"nested more than {MAX_DEPTH} deep")
        self.open.add(id(node))
        try:
            return Node(self.value(node, source), source, key)
        finally:
            self.open.discard(id(node))

    def value(self, node: yaml.Node, source: Source) -> Any:
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self.mapping(node)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.convert(child) for child in node.value]
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, source)
        raise _Refused(source, f"the tag {node.tag} is not allowed; write plain values")

    def scalar(self, node: yaml.ScalarNode, source: Source) -> Any:
        text = str(node.value)
        try:
            match node.tag.removeprefix(_TAG):
                case "str":
                    text.encode()  # a lone surrogate, written as an escape, is no text
                    if "\0" in text:  # nor is what no path, name or prompt can hold
                        raise ValueError
                    return text
                case "null":
                    return None
                case "bool":
                    return {"true": True, "false": False}[text.lower()]
                case "int":
                    return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
                case "float":
                    return float(re.sub(r"\.(?=inf|nan)", "", text.lower()))
        except (ValueError, KeyError):
            raise _Refused(source, f"{text[:40]!r} can't be read as {node.tag.removeprefix(_TAG)}") from None
        raise _Refused(source, f"the tag {node.tag} is not allowed; write plain values")

    def mapping(self, node: yaml.MappingNode) -> dict[str, Node]:
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key_node, value_node in node.value:
            key_source = self.source(key_node)
            if isinstance(key_node, yaml.ScalarNode) and key_node.value == "<<" and key_node.style is None:
                merged = self.merge_key(value_node) | merged
                continue
            key = self.scalar(key_node, key_source) if isinstance(key_node, yaml.ScalarNode) else None
            value = self.convert(value_node, key_source)
            if not isinstance(key, str):
                shown = f" {key_node.value}" if isinstance(key_node, yaml.ScalarNode) else ""
                self.problems.append(Problem(key_source, (), f"the key{shown} is no text; put it in quotes"))
            elif key in own:
                first = own[key].where
                self.problems.append(Problem(key_source, (), f"the key {key!r} is given twice; first at {first}"))
            else:
                own[key] = value
        return {**{k: v for k, v in merged.items() if k not in own}, **own}

    def merge_key(self, node: yaml.Node) -> dict[str, Node]:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Node] = {}
        for part in parts:
            if not isinstance(part, yaml.MappingNode):
                raise _Refused(self.source(part), "'<<' takes a mapping (an alias of one), or a list of them")
            merged = self.convert(part).value | merged
        return merged
