"""The reference part of docs/manifest.md, from the schema: ``python -m rlcore.manifest.reference docs/manifest.md``."""

from __future__ import annotations

import sys
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from rlcore.manifest.nodes import dotted
from rlcore.manifest.render import flow
from rlcore.manifest.schema import Manifest, PluginSection
from rlcore.manifest.sections import PLUGIN_SECTIONS, annotation_at, is_model, options_of, own_fields
from rlcore.manifest.words import describe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

    from rlcore.manifest.nodes import KeyPath

BEGIN, END = "<!-- keys: begin -->", "<!-- keys: end -->"


def manifest_reference() -> str:
    """Every key of every section in Markdown: type, default, sentence."""
    parts = []
    for path, model in _sections():
        text = "\n\n".join(part.replace("\n", " ") for part in cleandoc(model.__doc__ or "").split("\n\n"))
        kind = next((kind for pattern, kind in PLUGIN_SECTIONS.items() if pattern == path), None)
        options = f" Options of the {kind} plugin stand beside these keys." if kind else ""
        parts.append(f"### {dotted(path).replace('*', 'NAME') or 'Top level'}\n\n{text}{options}\n")
        parts.append("| key | must be | default | |\n|---|---|---|---|")
        parts += [_row(key, info) for key, info in own_fields(model, path).items()]
        parts.append("")
    return "\n".join(parts)


def with_reference(text: str) -> str:
    """A page with the part between the marks made anew. Raises ValueError for a page without marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page holds no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{manifest_reference()}\n{END}{after}"


def _sections(path: KeyPath = (), annotation: Any = Manifest) -> Iterator[tuple[KeyPath, type[BaseModel]]]:
    """Every mapping with keys of its own, outer before inner; an entry of a list or of named sections goes as ``*``."""
    for option in options_of(annotation):
        if is_model(option):
            if own_fields(option, path):
                yield path, option
            for key in own_fields(option, path):
                yield from _sections((*path, key), annotation_at(option, (key,)))
        elif get_origin(option) in (dict, list):
            yield from _sections((*path, "*"), get_args(option)[-1])


def _row(key: str, info: FieldInfo) -> str:
    sentence = (info.description or "").replace("\n", " ").replace("|", "\\|")
    return f"| `{key}` | {describe(info)} | {_default(info)} | {sentence} |"


def _default(info: FieldInfo) -> str:
    value = info.default
    if value is PydanticUndefined:
        return "needed"
    if isinstance(value, BaseModel):
        return "its defaults"
    if isinstance(value, list) and all(isinstance(item, PluginSection) for item in value) and value:
        value = [item.use for item in value]
    return f"`{flow(list(value) if isinstance(value, tuple) else value)}`"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(with_reference(page.read_text(encoding="utf-8")), encoding="utf-8")
