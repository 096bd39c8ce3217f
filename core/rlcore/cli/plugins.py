"""``rlcore plugins``: what is installed, what each takes, whether each can be imported."""

from __future__ import annotations

import inspect
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlcore.cli.table import print_table
from rlcore.errors import BrokenPluginError, UnknownPluginError
from rlcore.plugins.discovery import PluginInfo, find_plugins
from rlcore.plugins.kinds import KINDS, Kind, as_kind, split_key

if TYPE_CHECKING:
    from rlcore.plugins.config import PluginConfig
    from rlcore.plugins.loading import Plugin

app = typer.Typer(pretty_exceptions_enable=False)

KindOption = Annotated[str | None, typer.Option("--kind", metavar="KIND", help=f"Only these: {', '.join(KINDS)}.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback(invoke_without_command=True)
def list_plugins(context: typer.Context, kind: KindOption = None, as_json: JsonOption = False) -> None:
    """List installed plugins, from package metadata alone: nothing is imported."""
    if context.invoked_subcommand is not None:
        if kind is not None or as_json:
            raise typer.BadParameter(f"put options after {context.invoked_subcommand}")
        return
    found = find_plugins(_kind(kind))
    if as_json:
        print(json.dumps([asdict(info) for info in found], indent=2))
        return
    print_table(
        ("KIND", "NAME", "VERSION", "DISTRIBUTION", "STATUS", "SUMMARY"),
        [(i.kind, i.name, i.version, i.distribution, i.status, i.summary) for i in found],
    )
    _print_fixes(found)


@app.command()
def show(
    key: Annotated[
        str, typer.Argument(metavar="[KIND/]NAME", help="Such as clip or loss/clip, or reward/./my_reward.py.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Import one plugin and print what it does, its options, and what it needs and provides."""
    from rlcore.plugins.loading import load

    kind, name = _unique(key) if "/" not in key else split_key(key, "plugins show")
    plugin = load(kind, name, ready=False)
    status = next((i.status for i in find_plugins(kind) if i.name == name), "ok")
    doc = _doc(plugin)
    options = _options(plugin.config)
    capabilities = _capabilities(plugin)
    if as_json:
        told = {"plugin": plugin.who, "status": status, "doc": doc, "options": options, **capabilities}
        print(json.dumps(told, indent=2))
        return
    print(f"{plugin.who}\nstatus: {status}\n")
    if doc:
        print(f"{doc}\n")
    if options:
        print_table(("OPTION", "TYPE", "DEFAULT", "MEANING"), [tuple(option.values()) for option in options])
    else:
        print("no options")
    print()
    for side, names in capabilities.items():
        print(f"{side}: {', '.join(names) or 'nothing'}")


@app.command()
def check(kind: KindOption = None, as_json: JsonOption = False) -> None:
    """Import each plugin in a process of its own; exit code 1 if one is broken."""
    from rlcore.plugins.probe import probe

    rows: list[dict[str, Any]] = []
    for info in find_plugins(_kind(kind)):
        row: dict[str, Any] = {"kind": info.kind, "name": info.name, "distribution": info.distribution}
        row |= {"seconds": None, "heavy": [], "status": info.status}
        if _importable(info):
            result = probe(info.kind, info.name)
            row |= {"seconds": round(result.seconds, 3), "heavy": list(result.heavy)}
            if result.error is not None:
                row["status"] = f"broken: {result.error}"
        rows.append(row)
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        print_table(("KIND", "NAME", "DISTRIBUTION", "SECONDS", "HEAVY", "STATUS"), [_cells(row) for row in rows])
    broken = [row for row in rows if row["status"].startswith("broken")]
    if broken:
        print(f"{len(broken)} of {len(rows)} plugins broken", file=sys.stderr)
        raise typer.Exit(1)


def _unique(name: str) -> tuple[Kind, str]:
    """The kind and name of a plugin given by name alone."""
    kinds = list(dict.fromkeys(info.kind for info in find_plugins() if info.name == name))
    if len(kinds) == 1:
        return kinds[0], name
    if kinds:
        raise UnknownPluginError(f"several plugins are named {name!r}; say {' or '.join(f'{k}/{name}' for k in kinds)}")
    raise UnknownPluginError(
        f"no plugin {name!r} is installed; `rlcore plugins` lists them, and KIND/NAME says which one is meant"
    )


def _print_fixes(found: list[PluginInfo]) -> None:
    """How to get what is missing, on standard error: the table alone goes into a pipe."""
    for how in dict.fromkeys(info.how_to_fix for info in found if info.fix):
        missing = [info.key for info in found if info.how_to_fix == how]
        print(f"{', '.join(missing)}: {how}", file=sys.stderr)


def _kind(text: str | None) -> Kind | None:
    return None if text is None else as_kind(text, "--kind")


def _importable(info: PluginInfo) -> bool:
    """A plugin module is light, so that one whose requirements are missing can be imported all the same."""
    return info.status == "ok" or info.status.startswith("missing ")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    seconds = "" if row["seconds"] is None else f"{row['seconds']:.3f}"
    return row["kind"], row["name"], row["distribution"], seconds, ", ".join(row["heavy"]), row["status"]


def _doc(plugin: Plugin) -> str:
    """The first docstring of options, module and hook."""
    own = (plugin.config.__dict__.get("__doc__"), plugin.module.__doc__, plugin.hook.__doc__)
    return next((inspect.cleandoc(doc) for doc in own if doc), "")


def _options(config: type[PluginConfig]) -> list[dict[str, str]]:
    """Each option as a manifest has it, from the JSON Schema of the class."""
    schema = config.model_json_schema()
    return [
        {
            "name": name,
            "type": _type(option),
            "default": "required" if name in schema.get("required", ()) else json.dumps(option.get("default")),
            "doc": " ".join(option.get("description", "").split()),
        }
        for name, option in schema.get("properties", {}).items()
    ]


def _type(schema: dict[str, Any]) -> str:
    """``float >= 0 | null`` of a JSON Schema."""
    if "anyOf" in schema:
        return " | ".join(_type(choice) for choice in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return " | ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    words = {"integer": "int", "number": "float", "string": "str", "boolean": "bool", "array": "list", "null": "null"}
    signs = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
    limits = [f"{sign} {schema[limit]}" for limit, sign in signs.items() if limit in schema]
    return f"{words.get(schema.get('type', ''), 'mapping')} {' and '.join(limits)}".strip()


def _capabilities(plugin: Plugin) -> dict[str, list[str]]:
    """What the plugin needs and provides with default options; unknown where an option has no default."""
    if any(field.is_required() for field in plugin.config.model_fields.values()):
        return {side: ["depends on its options"] for side in ("needs", "provides")}
    try:
        options = plugin.config()
        return {"needs": sorted(options.needs()), "provides": sorted(options.provides())}
    except Exception as error:  # the plugin boundary; the plugin is named
        told = f"{plugin.who}: needs and provides of default options failed: {type(error).__name__}: {error}"
        raise BrokenPluginError(told) from error
