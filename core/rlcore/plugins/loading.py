"""Loads one plugin by name, builds what its hook returns, and says whose fault it is when that fails."""

from __future__ import annotations

import importlib
import inspect
import sys
import time
import traceback
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import pluggy
from pydantic import ValidationError

from rlcore.environment import BLOCK
from rlcore.errors import BrokenPluginError, PluginConflictError, PluginError, RlcoreError, UnknownPluginError
from rlcore.plugins import hookspecs, local
from rlcore.plugins.blame import deepest_line
from rlcore.plugins.config import AlgorithmConfig, PluginConfig, PluginRef
from rlcore.plugins.contract import check_config, check_product, hook_arguments, hook_signature
from rlcore.plugins.discovery import PluginInfo, find_plugins
from rlcore.plugins.hookspecs import HOOKS
from rlcore.plugins.known import KNOWN, install_hint

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from rlcore.plugins.kinds import Kind

_MACHINERY = (__file__, local.__file__, importlib.__file__)
"""Files whose frames say nothing about a plugin's error."""


@dataclass(frozen=True)
class Plugin:
    """A loaded plugin. ``who`` names it in errors, with its distribution and module, or its file."""

    kind: Kind
    name: str
    who: str
    module: ModuleType
    hook: Callable[..., Any]
    config: type[PluginConfig]
    import_seconds: float


def config_class(kind: Kind, name: str) -> type[PluginConfig]:
    """The class of a plugin's options; one without fields for a plugin that takes none.

    Raises UnknownPluginError, PluginConflictError, BrokenPluginError, or PluginError for a plugin that is blocked or
    whose requirements are not installed.
    """
    return load(kind, name).config


def config_of(ref: PluginRef) -> PluginConfig:
    """The plugin's options, validated. Raises what ``build`` does before it calls the hook."""
    return _validated(load(ref.kind, ref.name), ref)


def build(ref: PluginRef, context: object | None = None) -> Any:
    """What the plugin's hook returns for these options: a ``Reward``, a ``TrainBackend``, ….

    Raises what ``config_class`` does, PluginError for options that don't fit or a hook that fails, and errors of
    rlcore's own that the hook raises, with the plugin's name in front.
    """
    plugin = load(ref.kind, ref.name)
    given = {"config": _validated(plugin, ref), "context": context}
    arguments = {name: given[name] for name in inspect.signature(plugin.hook).parameters}
    try:
        product = plugin.hook(**arguments)
    except RlcoreError as error:
        error.args = (f"{plugin.who}: {error}",)
        raise
    except (Exception, SystemExit) as error:  # the plugin boundary; the plugin is named
        raise PluginError(f"{plugin.who} failed in {HOOKS[ref.kind]}: {_told(error)}") from error
    if problem := check_product(ref.kind, product):
        raise PluginError(f"{plugin.who}: {problem}")
    return product


def _validated(plugin: Plugin, ref: PluginRef) -> PluginConfig:
    try:
        return plugin.config.model_validate(dict(ref.options))
    except ValidationError as error:
        raise PluginError(f"{plugin.who}: {_bad_options(error, plugin.config)}") from error


def load(kind: Kind, name: str, *, ready: bool = True) -> Plugin:
    """Import one plugin and check that it implements its hook.

    With ``ready=False``, a plugin whose requirements are not installed is loaded too, to show its options.
    """
    if local.is_local(name):
        path = local.local_path(name)
        who = f"{kind} plugin {path}"
        start = time.perf_counter()
        module = _imported(who, lambda: local.import_file(path))
    else:
        info = _installed(kind, name)
        if info.status != "ok" and (ready or not info.status.startswith("missing ")):
            by = f" by {BLOCK}" if info.status == "blocked" else ""
            owner = f"distribution {info.distribution} {info.version}"
            fix = f"; {info.how_to_fix}" if info.fix else ""
            raise PluginError(f"{info.key} ({owner}) can't be used: {info.status}{by}{fix}")
        who = f"{info.key} (distribution {info.distribution} {info.version}, module {info.module})"
        if ":" in info.module:
            raise BrokenPluginError(f"{who}: an entry point must name a module, without a colon")
        start = time.perf_counter()
        module = _imported(who, lambda: importlib.import_module(info.module))
    seconds = time.perf_counter() - start
    hook = _hook(kind, who, module)
    return Plugin(kind, name, who, module, hook, _config_of(kind, who, hook), seconds)


def _imported(who: str, load_module: Callable[[], ModuleType]) -> ModuleType:
    try:
        return load_module()
    # SystemExit too: a script without a __main__ guard must not end the run.
    except (Exception, SystemExit) as error:
        raise BrokenPluginError(f"{who} can't be imported: {_told(error)}") from error


def _told(error: BaseException) -> str:
    """``ModuleNotFoundError: No module named 'x' (at /path/plugin.py:3)``: the plugin's own line, not its library's."""
    text = " ".join(str(error).split())
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} (at {error.filename}:{error.lineno})"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in _MACHINERY and not frame.filename.startswith("<frozen ")
    ]
    return f"{type(error).__name__}: {text}{deepest_line(frames)}"


def _hook(kind: Kind, who: str, module: ModuleType) -> Callable[..., Any]:
    """The function of the module that implements the kind's hook, and the only hook there."""
    rule = f"a {kind} implements {hook_signature(kind)} under @hookimpl, and no other hook (docs/plugins.md)"
    manager = pluggy.PluginManager("rlcore")
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(module)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise BrokenPluginError(f"{who}: {' '.join(str(error).split())}; {rule}") from error
    found = {name: impls for name in HOOKS.values() if (impls := getattr(manager.hook, name).get_hookimpls())}
    if list(found) != [HOOKS[kind]]:
        raise BrokenPluginError(f"{who} implements {' and '.join(found) or 'no hook'}; {rule}")
    (impl,) = found[HOOKS[kind]]
    unknown = [name for name in inspect.signature(impl.function).parameters if name not in hook_arguments(kind)]
    if unknown:
        raise BrokenPluginError(f"{who}: {HOOKS[kind]} takes {', '.join(map(repr, unknown))}; {rule}")
    if impl.wrapper or impl.hookwrapper:
        raise BrokenPluginError(f"{who}: {HOOKS[kind]} is a wrapper; {rule}")
    function: Callable[..., Any] = impl.function
    return function


def _config_of(kind: Kind, who: str, hook: Callable[..., Any]) -> type[PluginConfig]:
    if "config" not in inspect.signature(hook).parameters:
        return AlgorithmConfig if kind == "algorithm" else PluginConfig
    annotation: Any = _annotations(hook).get("config")
    while isinstance(annotation, str):  # twice with quotes and `from __future__ import annotations`
        try:
            # What typing.get_type_hints does, for this argument alone: others may be imported for type checkers only.
            annotation = eval(annotation, inspect.unwrap(hook).__globals__)
        except Exception as error:
            raise BrokenPluginError(
                f"{who}: the annotation of config, {annotation!r}, can't be resolved: {error}"
            ) from error
    if problem := check_config(kind, annotation):
        raise BrokenPluginError(f"{who}: {problem}")
    config: type[PluginConfig] = annotation
    return config


def _annotations(hook: Callable[..., Any]) -> dict[str, Any]:
    """Annotations as written, none resolved."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format, get_annotations

        return get_annotations(hook, format=Format.FORWARDREF)
    return inspect.get_annotations(hook)


def _bad_options(error: ValidationError, config: type[PluginConfig]) -> str:
    problems = []
    for detail in error.errors(include_url=False):
        option = ".".join(map(str, detail["loc"]))
        if detail["type"] == "extra_forbidden":
            close = get_close_matches(option, config.model_fields, n=1)
            guess = f"did you mean {close[0]!r}? " if close else ""
            problems.append(f"unknown option {option!r}; {guess}options are {', '.join(config.model_fields) or 'none'}")
        else:
            problems.append(f"option {option}: {detail['msg']}, got {detail['input']!r}")
    return "; ".join(problems)


def _installed(kind: Kind, name: str) -> PluginInfo:
    everything = find_plugins()
    claims = [info for info in everything if (info.kind, info.name) == (kind, name)]
    if not claims:
        raise UnknownPluginError(_unknown(kind, name, everything))
    if len(claims) > 1 and claims[0].status != "blocked":
        owners = " and ".join(f"{info.distribution} {info.version} ({info.module})" for info in claims)
        raise PluginConflictError(f"{kind}/{name} is claimed by {owners}; uninstall all but one of them")
    return claims[0]


def _unknown(kind: Kind, name: str, everything: list[PluginInfo]) -> str:
    """The message for a name that isn't installed: close matches, install hint, other kinds."""
    installed = list(dict.fromkeys(info.name for info in everything if info.kind == kind))
    known = [key.partition("/")[2] for key in KNOWN if key.startswith(f"{kind}/")]
    other_kinds = [other for other in HOOKS if any((info.kind, info.name) == (other, name) for info in everything)]
    other_kinds = other_kinds or [other for other in HOOKS if f"{other}/{name}" in KNOWN]
    parts = [f"no {kind} plugin {name!r} is installed"]
    if close := _close(name, installed):
        parts.append(f"did you mean {' or '.join(map(repr, close))}?")
    if name in known:
        parts.append(install_hint(f"{kind}/{name}"))
    elif other_kinds:
        parts.append(f"{name!r} is a plugin of kind {' and '.join(other_kinds)}")
    elif not close and (guess := _close(name, known)):
        parts.append(f"did you mean {guess[0]!r}? {install_hint(f'{kind}/{guess[0]}')}")
    parts.append(f"installed: {', '.join(installed) or 'none'}")
    return "; ".join(parts)


def _close(name: str, names: list[str]) -> list[str]:
    """Names spelt much like this one, or that it is a part of: ``gsm8k`` of ``gsm8k-rule-reward``."""
    return get_close_matches(name, names, n=3) or [other for other in names if name in other.split("-")][:3]
