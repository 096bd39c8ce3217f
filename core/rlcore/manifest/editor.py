"""The manifest as JSON Schema: the core's keys, and for each installed plugin the options that its name brings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rlcore.errors import PluginError
from rlcore.manifest.schema import Manifest, PluginSection
from rlcore.manifest.sections import PLUGIN_SECTIONS, annotation_at, fields_of, is_model, options_of
from rlcore.plugins.discovery import find_plugins
from rlcore.plugins.loading import config_class

if TYPE_CHECKING:
    from rlcore.plugins.config import Kind, PluginConfig

Schema = dict[str, Any]


def manifest_schema() -> tuple[Schema, list[str]]:
    """The schema, and the errors of installed plugins whose options could not be told.

    A section takes the core's keys and the options of the plugin that ``use`` names; for local files and for plugins
    that are not installed it takes anything. Where a manifest extends another, no key is required in it.
    """
    schema = Manifest.model_json_schema(by_alias=True)
    definitions: dict[str, Schema] = schema["$defs"]
    broken: list[str] = []
    # Losses and trackers share a section without keys of its own; each kind gets its own.
    plain = definitions.pop(PluginSection.__name__)
    _point_at(definitions["AlgorithmSection"]["properties"], "loss", "LossSection")
    _point_at(definitions["RunSection"]["properties"], "trackers", "TrackerSection")
    sections: dict[str, tuple[Schema, Kind]] = {"LossSection": (plain, "loss"), "TrackerSection": (plain, "tracker")}
    sections |= {m.__name__: (definitions[m.__name__], kind) for m, kind in _plugin_models().items()}
    for name, (definition, kind) in sections.items():
        definition["properties"].pop("options", None)
        definitions[name] = _with_plugins(definition, kind, definitions, broken)
    for key in set(schema["properties"]) - set(fields_of(Manifest)):
        del schema["properties"][key]
    return _extendable(schema), list(dict.fromkeys(broken))


def _plugin_models() -> dict[type[PluginSection], Kind]:
    models: dict[type[PluginSection], Kind] = {}
    for pattern, kind in PLUGIN_SECTIONS.items():
        path = tuple(0 if part == "*" and pattern[0] == "run" else part for part in pattern)
        for option in options_of(annotation_at(Manifest, path)):
            if is_model(option):
                models[option] = kind
    del models[PluginSection]
    return models


def _point_at(properties: Schema, key: str, definition: str) -> None:
    text = json.dumps(properties[key]).replace("#/$defs/PluginSection", f"#/$defs/{definition}")
    properties[key] = json.loads(text)


def _with_plugins(section: Schema, kind: Kind, definitions: dict[str, Schema], broken: list[str]) -> Schema:
    """A section that takes a name, or a mapping whose further keys depend on ``use``."""
    names, rules = [], []
    for info in find_plugins(kind):
        names.append(info.name)
        try:
            config = config_class(info.kind, info.name)
        except PluginError as error:
            broken.append(str(error))
            continue
        own = _options(config, f"{info.kind}.{info.name}", definitions)
        then = {"properties": {**section["properties"], **own}, "additionalProperties": False}
        rules.append({"if": {"properties": {"use": {"const": info.name}}, "required": ["use"]}, "then": then})
    use = {**section["properties"]["use"], "anyOf": [{"enum": names}, {"type": "string"}]}
    use.pop("type", None)
    mapping = {k: v for k, v in section.items() if k not in ("additionalProperties", "description", "title")}
    mapping |= {"properties": {**section["properties"], "use": use}, "allOf": rules}
    head: Schema = {k: section[k] for k in ("title", "description") if k in section}
    return {**head, "anyOf": [{"anyOf": use["anyOf"], "type": "string"}, mapping]}


def _options(config: type[PluginConfig], prefix: str, definitions: dict[str, Schema]) -> Schema:
    """The properties of a plugin's config; models inside go to the definitions under the plugin's name."""
    schema = config.model_json_schema(by_alias=True, ref_template=f"#/$defs/{prefix}.{{model}}")
    for name, definition in schema.get("$defs", {}).items():
        definitions[f"{prefix}.{name}"] = definition
    properties: Schema = schema.get("properties", {})
    return properties


def _extendable(schema: Schema) -> Schema:
    """The schema with ``extends``; with it the other file may hold what is required."""
    partial = _without_required(json.loads(json.dumps(schema).replace("#/$defs/", "#/$defs/partial.")))
    definitions = {**schema.pop("$defs"), **{f"partial.{k}": v for k, v in partial.pop("$defs").items()}}
    extends = {
        "description": "Files that this one is written on top of, relative to it.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    partial["properties"] = {"extends": extends, **partial["properties"]}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "rlcore manifest",
        "if": {"required": ["extends"]},
        "then": partial,
        "else": schema,
        "$defs": definitions,
    }


def _without_required(value: Any) -> Any:
    if isinstance(value, dict):
        # Inside "if" it is what makes the rule apply; elsewhere, where it is a list, it demands keys.
        return {
            k: v if k == "if" else _without_required(v)
            for k, v in value.items()
            if not (k == "required" and isinstance(v, list))
        }
    return [_without_required(item) for item in value] if isinstance(value, list) else value
