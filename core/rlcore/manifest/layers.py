"""How a manifest is put together: a file over those it extends, ``--set`` over all, a plugin's defaults underneath."""

from __future__ import annotations

import functools
import os.path
from pathlib import Path
from typing import TYPE_CHECKING

from rlcore.errors import ManifestError
from rlcore.manifest.nodes import KeyPath, Node, Problem, Source, dotted, plain
from rlcore.manifest.reader import MAX_DEPTH, decode, read_yaml
from rlcore.manifest.schema import Manifest
from rlcore.manifest.sections import FILE_KEYS, fields_of, kind_at, model_at
from rlcore.manifest.words import show
from rlcore.plugins.local import is_local

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_BYTES = 1_000_000
"""A manifest that is larger is a mistake, or a device that never ends."""


def read_layers(file: Path, problems: list[Problem], above: tuple[Path, ...] = ()) -> Node | None:
    """A manifest file merged over the files that it extends.

    None, and problems, where one of them can't be read: what is missing can't be told then.
    """
    root = _read_file(file, problems)
    if root is None:
        return None
    given = _extended(root.value.pop("extends", None), problems)
    root = absolute_paths(root, file.parent)
    bases = [_read_base(node, file, (*above, file), problems) for node in given or []]
    if given is None or None in bases:
        return None
    layers = [*(base for base in bases if base is not None), root]
    return functools.reduce(merge, layers)


def _read_base(given: Node, file: Path, chain: tuple[Path, ...], problems: list[Problem]) -> Node | None:
    base = _absolute(given, ("extends",), file.parent)
    if any(_same(base, earlier) for earlier in chain):
        circle = " → ".join(f.name for f in (*chain, base))
        problems.append(Problem(given.source, ("extends",), f"extends in a circle: {circle}"))
        return None
    if not base.is_file():
        problems.append(Problem(given.source, ("extends",), f"no such file: {base}"))
        return None
    return read_layers(base, problems, chain)


def _read_file(file: Path, problems: list[Problem]) -> Node | None:
    start = Source(str(file), 1, 1)
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            problems.append(Problem(start, (), f"more than {MAX_BYTES:,} bytes; is this a manifest?"))
            return None
        text = decode(data, str(file), problems)
    except OSError as error:
        reason = (
            "no such file" if isinstance(error, FileNotFoundError) else (error.strerror or "it can't be read").lower()
        )
        problems.append(Problem(Source(str(file)), (), reason))
        return None
    root = None if text is None else read_yaml(text, str(file), problems)
    if root is None:
        return None
    if root.value is None:
        problems.append(Problem(start, (), "the manifest is empty; it starts with 'rlcore: 1'"))
        return None
    if not root.is_mapping:
        problems.append(Problem(root.source, (), "a manifest is a mapping of keys such as 'rlcore: 1'"))
        return None
    return root


def _extended(node: Node | None, problems: list[Problem]) -> list[Node] | None:
    if node is None or node.value is None:
        return []
    items = node.value if isinstance(node.value, list) else [node]
    if not all(isinstance(item.value, str) and item.value for item in items):
        problems.append(Problem(node.source, ("extends",), "must be a file or a list of files, relative to this one"))
        return None
    return items


def _same(a: Path, b: Path) -> bool:
    return os.path.realpath(a) == os.path.realpath(b)


def looks_like_path(text: str) -> bool:
    """Whether a model's path is a folder rather than an id on the hub."""
    return text.startswith((".", "/", "~"))


def absolute_paths(root: Node, folder: Path) -> Node:
    """A file's tree with plugins given by name alone as mappings, and paths relative to its folder made absolute."""

    def visit(node: Node, path: KeyPath) -> Node:
        if kind_at(path) and isinstance(node.value, str):
            node = node.with_value({"use": Node(node.value, node.source)})
        if isinstance(node.value, dict):
            return node.with_value({key: visit(child, (*path, key)) for key, child in node.value.items()})
        if isinstance(node.value, list):
            return node.with_value([visit(child, (*path, i)) for i, child in enumerate(node.value)])
        if isinstance(node.value, str) and node.value and _holds_path(path, node.value):
            return node.with_value(str(_absolute(node, path, folder)))
        return node

    return visit(root, ())


def _absolute(given: Node, path: KeyPath, folder: Path) -> Path:
    """A path as an absolute one. Raises ManifestError for one that can't be looked at, whatever may be there."""
    try:
        absolute = (folder / Path(given.value).expanduser()).resolve()
        absolute.exists()  # raises for a name that is too long and for a folder that may not be entered
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ManifestError(
            str(Problem(given.source, path, f"{show(given.value)} is no path here: {reason}"))
        ) from error
    return absolute


def _holds_path(path: KeyPath, value: str) -> bool:
    if path in (("model", "path"), ("critic", "path")):
        return looks_like_path(value)
    if path[-1:] == ("use",) and kind_at(path[:-1]):
        return is_local(value)
    return path in FILE_KEYS or (path[:-1] in FILE_KEYS and isinstance(path[-1], int))


def merge(base: Node, over: Node, path: KeyPath = ()) -> Node:
    """``over`` on top of ``base``: mappings merge, everything else replaces; null for a reward of ``base`` removes it.

    A section that names another plugin keeps the base's core keys and drops the options of the base's plugin.
    """
    if not (base.is_mapping and over.is_mapping):
        return over
    kept = base.value
    if kind_at(path) and _changes_plugin(base, over):
        model = model_at(Manifest, path)
        core = fields_of(model) if model else {}
        kept = {key: child for key, child in kept.items() if key in core}
    merged = dict(kept)
    for key, child in over.value.items():
        if path == ("rewards",) and child.value is None and key in kept:
            del merged[key]
            continue
        merged[key] = merge(kept[key], child, (*path, key)) if key in kept else child
    return over.with_value(merged)


def _changes_plugin(base: Node, over: Node) -> bool:
    old, new = base.get("use"), over.get("use")
    return old is not None and new is not None and plain(old) != plain(new)


def apply_overrides(root: Node, overrides: Sequence[str], folder: Path, problems: list[Problem]) -> Node:
    """The manifest with each ``a.b=value`` set; values are YAML, list items go by number from 0."""
    for override in overrides:
        name, equals, text = override.partition("=")
        name = name.strip()
        source = Source(f"--set {name}")
        keys: KeyPath = tuple(int(part) if part.isdecimal() else part for part in name.split("."))
        if not equals or not all(part != "" for part in keys) or len(keys) > MAX_DEPTH:
            problems.append(Problem(Source(f"--set {override}"), (), "write --set KEY=VALUE, such as trainer.lr=5e-7"))
            continue
        value = read_yaml(text, "", problems, fixed=source)
        if value is not None:
            over = _nest(root, keys, value, source, problems, ())
            root = merge(root, absolute_paths(over, folder)) if over is not None else root
    return root


def _nest(
    target: Node | None, keys: KeyPath, value: Node, source: Source, problems: list[Problem], path: KeyPath
) -> Node | None:
    """A node that sets the value at ``keys`` when merged over ``target``; None, and a problem, for no such item."""
    if not keys:
        return Node(value.value, source, source)
    key, rest = keys[0], keys[1:]
    if target is not None and isinstance(target.value, list):
        items = target.value
        if not isinstance(key, int) or key >= len(items):
            message = (
                f"{dotted(path)} is a list of {len(items)}; name an item by its number from 0, or set the whole list"
            )
            problems.append(Problem(source, (*path, key), message))
            return None
        over = _nest(items[key], rest, value, source, problems, (*path, key))
        if over is None:
            return None
        return target.with_value([*items[:key], merge(items[key], over, (*path, key)), *items[key + 1 :]])
    child = target.get(str(key)) if target is not None else None
    over = _nest(child, rest, value, source, problems, (*path, key))
    return None if over is None else Node({str(key): over}, source, source)
