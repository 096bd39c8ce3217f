"""The text of a run's records: a manifest with the source of every value beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import yaml


class _Flow(yaml.SafeDumper):
    """Writes any plain value on one line."""


def _string(dumper: _Flow, text: str) -> yaml.ScalarNode:
    # Only the double-quoted style keeps line breaks as escapes.
    style = '"' if any(not char.isprintable() for char in text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Flow.add_representer(str, _string)


def annotated_yaml(values: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    """A mapping as YAML, one value a line, with its source (by dotted key) behind it: ``lr: 0.1  # grpo.yaml:7:7``."""
    return "".join(f"{line}\n" for line in _lines(values, sources, "", ""))


def json_text(value: Any) -> str:
    """Plain values as indented JSON."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _lines(values: Mapping[str, Any], sources: Mapping[str, str], prefix: str, indent: str) -> Iterator[str]:
    for key, value in values.items():
        path = prefix + key
        source = "".join(char if char.isprintable() else "?" for char in sources.get(path, ""))
        comment = f"  # {source}" if source else ""
        if isinstance(value, Mapping) and value:
            yield f"{indent}{_flow(key)}:{comment}"
            yield from _lines(value, sources, f"{path}.", indent + "  ")
        else:
            yield f"{indent}{_flow(key)}: {_flow(value)}{comment}"


def _flow(value: Any) -> str:
    text: str = yaml.dump(
        value, Dumper=_Flow, default_flow_style=True, width=math.inf, allow_unicode=True, sort_keys=False
    )
    return text.removesuffix("...\n").strip("\n")
