"""Where plugins stand in a manifest, and what the schema says about a path. New sections go into its table."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from rlcore.manifest.schema import Manifest, PluginSection, TrainerSection

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic.fields import FieldInfo

    from rlcore.manifest.nodes import KeyPath
    from rlcore.plugins.config import Kind

PLUGIN_SECTIONS: Mapping[KeyPath, Kind] = {
    ("trainer",): "trainer",
    ("reference",): "trainer",
    ("critic",): "trainer",
    ("rollout",): "rollout",
    ("algorithm",): "algorithm",
    ("algorithm", "loss"): "loss",
    ("rewards", "*"): "reward",
    ("run", "trackers", "*"): "tracker",
}
"""The kind of plugin that each section with ``use`` names; ``*`` stands for any key or index."""

FILE_KEYS: frozenset[KeyPath] = frozenset({("data", "train"), ("data", "val"), ("run", "folder")})
"""Keys that hold paths of files or folders, relative to the manifest that they are written in."""


def kind_at(path: KeyPath) -> Kind | None:
    """The kind of plugin that the section at this path names, or None."""
    for pattern, kind in PLUGIN_SECTIONS.items():
        if len(pattern) == len(path) and all(p in ("*", q) for p, q in zip(pattern, path, strict=True)):
            return kind
    return None


def plugin_sections(manifest: Manifest) -> Iterator[tuple[KeyPath, Kind, PluginSection]]:
    """Every section of a manifest that names a plugin: its path, the kind, the section."""
    for pattern, kind in PLUGIN_SECTIONS.items():
        found: list[tuple[KeyPath, Any]] = [((), manifest)]
        for part in pattern:
            found = [((*path, key), child) for path, value in found for key, child in _below(value, part)]
        yield from ((path, kind, section) for path, section in found if isinstance(section, PluginSection))


def _below(value: Any, part: str | int) -> list[tuple[str | int, Any]]:
    if part == "*":
        return list(value.items() if isinstance(value, dict) else enumerate(value))
    return [(part, getattr(value, str(part), None))]


def fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model by the key that a manifest uses, without those that are no keys."""
    return {
        info.alias or name: info
        for name, info in model.model_fields.items()
        if not (isinstance(info.json_schema_extra, dict) and info.json_schema_extra.get("internal"))
    }


def own_fields(model: type[BaseModel], path: KeyPath) -> dict[str, FieldInfo]:
    """The fields of the section at a path, but for those that ``trainer`` has with the same meaning."""
    known = fields_of(TrainerSection) if path in (("reference",), ("critic",)) else {}
    return {key: info for key, info in fields_of(model).items() if key not in known}


def annotation_at(model: type[BaseModel], path: KeyPath) -> Any:
    """The annotation of the value at a path below a model, its constraints included; None where there is none."""
    annotation: Any = model
    for part in path:
        annotation = _step(annotation, part)
        if annotation is None:
            return None
    return annotation


def model_at(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """The model of the mapping at a path below a model, or None where it is no mapping with known keys."""
    return next((option for option in options_of(annotation_at(model, path)) if is_model(option)), None)


def is_model(annotation: Any) -> bool:
    """Whether an annotation is a pydantic model."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def options_of(annotation: Any) -> list[Any]:
    """The members of a union with constraints taken off, or the one annotation."""
    if get_origin(annotation) is Annotated:
        return options_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [option for member in get_args(annotation) for option in options_of(member)]
    return [annotation]


def _step(annotation: Any, part: str | int) -> Any:
    for option in options_of(annotation):
        if is_model(option):
            info = fields_of(option).get(str(part))
            if info is not None:
                return Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        elif get_origin(option) is dict and isinstance(part, str):
            return get_args(option)[1]
        elif get_origin(option) is list and isinstance(part, int):
            return get_args(option)[0]
        elif get_origin(option) is tuple and isinstance(part, int):
            args = get_args(option)
            return args[0] if args[-1] is ... else (args[part] if part < len(args) else None)
    return None
