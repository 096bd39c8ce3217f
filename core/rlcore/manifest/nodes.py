"""Values with the place that each was written in, and problems that point at such a place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlcore.errors import ManifestError

KeyPath = tuple[str | int, ...]
"""Where a value is in the manifest: keys and list indices from the root."""


@dataclass(frozen=True, order=True)
class Source:
    """Where a value comes from: a file with line and column (from 1), ``--set KEY``, or ``default``."""

    name: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.name}:{self.line}:{self.column}" if self.line else self.name


DEFAULT = Source("default")


@dataclass(frozen=True, eq=False)
class Node:
    """A value of a manifest: a mapping or list of nodes, or a scalar. ``key`` is where its key stands."""

    value: Any
    source: Source
    key: Source | None = None

    @property
    def is_mapping(self) -> bool:
        """Whether it holds nodes by key."""
        return isinstance(self.value, dict)

    @property
    def where(self) -> Source:
        """The place to point at when the entry as a whole is wrong."""
        return self.key or self.source

    def children(self) -> Iterator[tuple[str | int, Node]]:
        """Keys or indices with their nodes; nothing for a scalar."""
        if isinstance(self.value, dict):
            yield from self.value.items()
        elif isinstance(self.value, list):
            yield from enumerate(self.value)

    def get(self, *path: str | int) -> Node | None:
        """The node at a path below this one, or None."""
        node: Node | None = self
        for part in path:
            if node is None:
                return None
            value = node.value
            if isinstance(value, dict):
                node = value.get(part)
            elif isinstance(value, list) and isinstance(part, int) and 0 <= part < len(value):
                node = value[part]
            else:
                return None
        return node

    def nearest(self, path: KeyPath) -> Node:
        """The node at a path, or of the closest entry around it that was written."""
        for length in range(len(path), 0, -1):
            if (node := self.get(*path[:length])) is not None:
                return node
        return self

    def walk(self, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Node]]:
        """Every node below this one with its path, outer before inner."""
        for key, child in self.children():
            yield (*path, key), child
            yield from child.walk((*path, key))

    def with_value(self, value: Any) -> Node:
        """Another value in the same place."""
        return Node(value, self.source, self.key)

    def with_child(self, key: str, child: Node) -> Node:
        """This mapping with one entry added or replaced."""
        return self.with_value({**self.value, key: child})


def plain(node: Node) -> Any:
    """The value without its places."""
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [plain(child) for child in node.value]
    return node.value


def node_of(value: Any, source: Source) -> Node:
    """A plain value as a node, all of it from one place."""
    if isinstance(value, Mapping):
        return Node({str(k): node_of(v, source) for k, v in value.items()}, source)
    if isinstance(value, (list, tuple)):
        return Node([node_of(v, source) for v in value], source)
    return Node(value, source)


def dotted(path: Iterable[str | int]) -> str:
    """A path as people write it: ``rewards.correct.weight``."""
    return ".".join(str(part) for part in path)


@dataclass(frozen=True)
class Problem:
    """Something wrong: where, at which key, and what. Prints as ``file:line:col: path: what``."""

    source: Source
    path: KeyPath
    message: str

    def __str__(self) -> str:
        path = dotted(self.path)
        parts = [str(self.source), path, self.message]
        return ": ".join(part for part in parts if part and not (part is path and self.source.name == f"--set {path}"))


def refuse(problems: Iterable[Problem]) -> None:
    """Raise all problems, in the order of their places, as one ``ManifestError``; nothing where there are none."""
    lines = dict.fromkeys(str(p) for p in sorted(problems, key=lambda p: (p.source, dotted(p.path))))
    if lines:
        raise ManifestError("\n".join(lines))
