"""The tree of nodes against the schema and the plugins' configs: typed values out, or every problem with its place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core.core_schema import ErrorType

from rlcore.errors import PluginError
from rlcore.manifest.layers import merge
from rlcore.manifest.nodes import DEFAULT, KeyPath, Node, Problem, Source, dotted, node_of, plain
from rlcore.manifest.schema import Manifest, RunSection
from rlcore.manifest.sections import annotation_at, fields_of, kind_at, model_at
from rlcore.manifest.words import core_homes, describe, unknown_key, wrong_value
from rlcore.plugins.config import AlgorithmConfig, Kind, PluginConfig
from rlcore.plugins.loading import config_class
from rlcore.plugins.local import is_local, local_path

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

Model = TypeVar("Model", bound=BaseModel)

_LISTS = frozenset({"tuple_type", "set_type", "frozen_set_type", "is_instance_of"})
_TYPE_ERRORS = frozenset(get_args(ErrorType)) - {"value_error", "assertion_error"}


@dataclass
class Validation:
    """What is known of a manifest while it is validated, and after.

    ``configs`` holds the validated options by the path of their section; ``unloaded`` the local plugins that were not
    imported; ``defaults_known`` says that the algorithm told what it brings. ``manifest`` is None where the core's own
    keys are wrong; with ``problems`` it is good for checks only.
    """

    root: Node
    base: Path
    load_local: bool
    problems: list[Problem] = field(default_factory=list)
    configs: dict[KeyPath, PluginConfig] = field(default_factory=dict)
    unloaded: dict[KeyPath, str] = field(default_factory=dict)
    manifest: Manifest | None = None
    defaults_known: bool = False

    def problem(self, path: KeyPath, message: str, *, at_key: bool = False) -> Problem:
        """A problem with the value (or key) at a path, or with the closest section around it that was written."""
        node = None if at_key else self.root.get(*path)
        return Problem(node.source if node is not None else self.root.nearest(path).where, path, message)


Check = Callable[[Validation, Manifest], Iterator[Problem]]
"""What sections must agree on: one function, which yields problems with their places."""


def is_trust_key(key: str | int) -> bool:
    """Whether a key asks to run code that comes with a model, in whatever spelling (``trustRemoteCode``)."""
    return re.sub(r"[\W_]", "", str(key)).lower() == "trustremotecode"


def validate(root: Node, base: Path, *, load_local: bool = True) -> Validation:
    """Validate a merged tree; defaults that the algorithm brings are merged into it. Problems are collected."""
    state = Validation(_with_run_defaults(root, base), base, load_local)
    classes: dict[KeyPath, type[PluginConfig] | None] = {}
    options: dict[KeyPath, dict[str, Any]] = {}
    # The algorithm first: its defaults may name the loss, a plugin in its turn.
    paths = sorted((p for p, n in root.walk() if kind_at(p) and n.is_mapping), key=lambda p: p != ("algorithm",))
    _load_plugins(state, [p for p in paths if p == ("algorithm",)], classes, options)
    _merge_defaults(state, classes)
    rest = [p for p, n in state.root.walk() if kind_at(p) and n.is_mapping and p != ("algorithm",)]
    _load_plugins(state, rest, classes, options)
    _report_unknown_keys(state, classes)
    values = _core_values(state.root, (), options)
    values["base"] = str(base)
    _validate_core(state, values)
    return state


def _with_run_defaults(root: Node, base: Path) -> Node:
    """The defaults that need work like what is written: trackers are plugins, the folder of runs is relative."""
    section = root.get("run") or Node({}, DEFAULT)
    if not section.is_mapping:
        return root
    usual = RunSection()
    trackers = [{"use": tracker.use} for tracker in usual.trackers]
    defaults = {"folder": str((base / usual.folder).resolve()), "trackers": trackers}
    added = {key: node_of(value, DEFAULT) for key, value in defaults.items() if key not in section.value}
    return root.with_child("run", section.with_value({**section.value, **added}))


def _load_plugins(
    state: Validation,
    paths: Collection[KeyPath],
    classes: dict[KeyPath, type[PluginConfig] | None],
    options: dict[KeyPath, dict[str, Any]],
) -> None:
    for path in paths:
        kind = kind_at(path)
        assert kind is not None
        classes[path] = config = _config_class(state, path, kind)
        section = state.root.get(*path)
        assert section is not None
        core = _core_keys(path)
        own = {key: plain(child) for key, child in section.value.items() if key not in core and not is_trust_key(key)}
        if config is None:
            options[path] = own
            continue
        own = {key: value for key, value in own.items() if key in fields_of(config)}
        parsed = _parse(state, config, own, path)
        if parsed is None:
            continue
        state.configs[path] = parsed
        try:
            options[path] = parsed.model_dump(mode="json", by_alias=True)
        except Exception as error:  # noqa: BLE001 - a plugin's own types
            message = f"the options of {_used(state, path)} can't be written as JSON: {error}"
            state.problems.append(state.problem(path, message))


def _core_keys(path: KeyPath) -> Collection[str]:
    model = model_at(Manifest, path)
    return fields_of(model) if model else ()


def _config_class(state: Validation, path: KeyPath, kind: Kind) -> type[PluginConfig] | None:
    """The class of options of the plugin that a section names; None, mostly with a problem, where there is none."""
    use = state.root.get(*path, "use")
    if use is None or not isinstance(use.value, str):
        return None
    try:
        if is_local(use.value) and not state.load_local:
            state.unloaded[path] = str(local_path(use.value))
            return None
        return config_class(kind, use.value)
    except PluginError as error:
        state.problems.append(Problem(use.source, (*path, "use"), str(error)))
        return None


def _parse(state: Validation, model: type[Model], values: dict[str, Any], path: KeyPath) -> Model | None:
    """The values as a model, strictly (no text for numbers); None and problems where they don't fit."""
    try:
        text = json.dumps(values)
        try:
            return model.model_validate_json(text, strict=True)
        except ValidationError as error:
            # Behind a validator of mode "before" pydantic forgets that lists are all that JSON has.
            if any(detail["type"] not in _LISTS for detail in error.errors(include_url=False)):
                raise
            return model.model_validate_json(text)
    except ValidationError as error:
        state.problems += explain(state, error, model, values, path)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin's own validator
        state.problems.append(state.problem(path, f"checking the options of {_used(state, path)} failed: {error!r}"))
    return None


def _used(state: Validation, path: KeyPath) -> str:
    use = state.root.get(*path, "use")
    return f"{kind_at(path)}/{use.value}" if use is not None else dotted(path)


def _merge_defaults(state: Validation, classes: Mapping[KeyPath, type[PluginConfig] | None]) -> None:
    path: KeyPath = ("algorithm",)
    config = state.configs.get(path)
    kind = classes.get(path)
    try:
        # Where its options are wrong, the plain defaults keep keys that it brings from being called missing.
        if config is None and kind is not None:
            config = kind()
        if not isinstance(config, AlgorithmConfig):
            return
        defaults = dict(config.defaults())
    except Exception as error:  # noqa: BLE001 - a plugin's own code
        if path in state.configs:
            state.problems.append(
                state.problem((*path, "use"), f"the defaults of {_used(state, path)} failed: {error!r}")
            )
        return
    section = state.root.get(*path)
    use = state.root.get(*path, "use")
    assert section is not None and use is not None
    brought = {k: {"use": v} if kind_at((*path, k)) and isinstance(v, str) else v for k, v in defaults.items()}
    unknown = sorted(brought.keys() - (set(_core_keys(path)) - {"use"}))
    if unknown:
        message = f"the defaults of {_used(state, path)} hold keys that the section doesn't know: {', '.join(unknown)}"
        state.problems.append(Problem(use.source, (*path, "use"), message))
        return
    merged = merge(node_of(brought, Source(f"default of {use.value}")), section, path)
    state.root = state.root.with_child("algorithm", merged)
    state.defaults_known = True


def _report_unknown_keys(state: Validation, classes: Mapping[KeyPath, type[PluginConfig] | None]) -> None:
    homes = core_homes()
    for path, config in classes.items():
        if config is not None:
            homes[dotted(path)] = [*homes.get(dotted(path), ()), *fields_of(config)]
    mappings = [((), state.root), *((p, n) for p, n in state.root.walk() if n.is_mapping)]
    for path, node in mappings:
        model = model_at(Manifest, path)
        if model is None or (path in classes and classes[path] is None):
            continue
        plugin = classes.get(path)
        known = [*fields_of(model), *(fields_of(plugin) if plugin else ())]
        for key, child in node.value.items():
            if key not in known and not is_trust_key(key):
                message = unknown_key(key, path, known, homes)
                state.problems.append(Problem(child.where, (*path, key), message))


def _core_values(node: Node, path: KeyPath, options: Mapping[KeyPath, dict[str, Any]]) -> Any:
    """Plain values of the core's own keys; a plugin's go under ``options``."""
    if not node.is_mapping:
        if isinstance(node.value, list):
            return [_core_values(child, (*path, i), options) for i, child in enumerate(node.value)]
        return node.value
    model = model_at(Manifest, path)
    known = fields_of(model) if model else node.value
    values = {k: _core_values(child, (*path, k), options) for k, child in node.value.items() if k in known}
    return {**values, "options": options[path]} if path in options else values


def _validate_core(state: Validation, values: dict[str, Any]) -> None:
    before = len(state.problems)
    state.manifest = _parse(state, Manifest, values, ())
    # Checks across sections still run where leaving out the wrong values makes a manifest: more problems at once.
    if state.manifest is None:
        for problem in state.problems[before:]:
            _remove(values, problem.path)
        state.manifest = _parse(Validation(state.root, state.base, False), Manifest, values, ())


def _remove(values: Any, path: KeyPath) -> None:
    for part in path[:-1]:
        if isinstance(values, list) and isinstance(part, int):
            values = values[part]
        else:
            values = values.get(part) if isinstance(values, dict) else None
    if path and isinstance(values, dict):
        values.pop(path[-1], None)


def explain(
    state: Validation, error: ValidationError, model: type[BaseModel], values: Any, at: KeyPath
) -> list[Problem]:
    """Pydantic's errors in people's words, one for each path; ``at`` is the path of the model in the manifest."""
    messages: dict[KeyPath, str] = {}
    unions: set[KeyPath] = set()
    unknown: set[KeyPath] = set()
    for detail in error.errors(include_url=False, include_context=False):
        # Too short a tuple misses an item; that is a wrong value, not a key that is left out.
        missing = detail["type"] == "missing" and isinstance(detail["loc"][-1], str)
        path, is_union = _resolve(detail["loc"], values, missing=missing)
        if is_union:
            unions.add(path)
        messages.setdefault(path, _message(detail, model, path, _value(values, path), missing=missing))
        if detail["type"] == "extra_forbidden":
            unknown.add(path)
    inner = {path for path in messages for other in messages if path in unions and other[: len(path)] == path != other}
    return [
        state.problem((*at, *path), message, at_key=path in unknown)
        for path, message in messages.items()
        if path not in inner
    ]


def _message(detail: Any, model: type[BaseModel], path: KeyPath, value: Any, *, missing: bool) -> str:
    kind, annotation = detail["type"], annotation_at(model, path)
    if missing:
        parent = model_at(model, path[:-1])
        info = fields_of(parent).get(str(path[-1])) if parent else None
        return f"is needed: {info.description}" if info and info.description else "is needed"
    if kind == "extra_forbidden":
        parent = model_at(model, path[:-1])
        return unknown_key(str(path[-1]), path[:-1], fields_of(parent) if parent else (), {})
    if kind in _TYPE_ERRORS and annotation is not None:
        words = "a number that is finite" if kind == "finite_number" else describe(annotation)
        return wrong_value(words, value, path)
    return str(detail["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")


def _resolve(loc: tuple[int | str, ...], values: Any, *, missing: bool) -> tuple[KeyPath, bool]:
    """The path in the manifest of pydantic's location, and whether members of a union were left out of it."""
    path: list[str | int] = []
    union = False
    for i, part in enumerate(loc):
        indexed = isinstance(values, list) and isinstance(part, int) and part < len(values)
        if indexed or (isinstance(values, dict) and part in values):
            values = values[part]
        elif not (missing and i == len(loc) - 1):
            union = True
            continue
        path.append(part)
    return tuple(path), union


def _value(values: Any, path: KeyPath) -> Any:
    for part in path:
        if isinstance(values, dict):
            values = values.get(part)
        elif isinstance(values, list) and isinstance(part, int):
            values = values[part]
    return values
