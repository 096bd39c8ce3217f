"""A resolved manifest as YAML with the place that each value came from."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlcore.manifest.load import LoadedManifest
    from rlcore.manifest.nodes import KeyPath

# Words that can't be taken for anything but text, by any YAML reader.
_BARE = re.compile(r"[A-Za-z_/][A-Za-z0-9_./+-]*\Z")
_TAKEN = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
# What JSON leaves as it is and YAML takes for a line break or refuses.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def render_resolved(loaded: LoadedManifest) -> str:
    """Every value with its source in a comment; the text is a manifest again, paths absolute."""
    lines: list[tuple[str, str]] = []
    _write(loaded, loaded.resolved(), (), lines)
    width = min(max(len(text) for text, _ in lines), 60)
    return "\n".join(f"{text:<{width}}  # {source}" if source else text for text, source in lines) + "\n"


def _write(loaded: LoadedManifest, values: dict[str, Any], path: KeyPath, lines: list[tuple[str, str]]) -> None:
    indent = "  " * len(path)
    for key, value in values.items():
        here = (*path, key)
        if isinstance(value, dict) and value:
            lines.append((f"{indent}{_scalar(key)}:", ""))
            _write(loaded, value, here, lines)
        else:
            lines.append((f"{indent}{_scalar(key)}: {flow(value)}", str(loaded.source_of(here))))


def flow(value: Any) -> str:
    """A value on one line of YAML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(key)}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _BARE.match(value) and value.lower() not in _TAKEN:
        return value
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and "." not in text:
        text = text.replace("e", ".0e")  # 1e-06 is a text to readers of YAML 1.1
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
