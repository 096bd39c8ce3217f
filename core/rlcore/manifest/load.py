"""The way in: a file, the files it extends and ``--set`` become a typed manifest, or one error with every problem."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.errors import ManifestError
from rlcore.manifest.checks import check, find_warnings
from rlcore.manifest.layers import absolute_paths, apply_overrides, read_layers
from rlcore.manifest.nodes import DEFAULT, KeyPath, Node, Problem, Source, node_of, refuse
from rlcore.manifest.sections import plugin_sections
from rlcore.manifest.validate import validate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlcore.manifest.schema import Manifest
    from rlcore.plugins.config import PluginConfig


@dataclass(frozen=True)
class LoadedManifest:
    """A manifest that can be run, with the place of every value.

    ``configs`` holds each plugin's validated options by the path of its section, ``unloaded`` the local plugin files
    that were not imported, so that their options are as given, and ``warnings`` sentences that stop nothing.
    """

    manifest: Manifest
    root: Node = field(repr=False)
    configs: Mapping[KeyPath, PluginConfig] = field(default_factory=dict)
    unloaded: Mapping[KeyPath, str] = field(default_factory=dict)
    warnings: tuple[Problem, ...] = ()

    def resolved(self) -> dict[str, Any]:
        """Every value, defaults included, as plain values. Loaded again it gives an equal manifest."""
        values = self.manifest.model_dump(mode="json", by_alias=True)
        # The one section where a key that is left out and a null that is written out differ.
        values["data"]["columns"] = self.manifest.data.columns.model_dump(mode="json", exclude_unset=True)
        for path, _, section in plugin_sections(self.manifest):
            target: Any = values
            for part in path:
                target = target[part]
            target.update(section.options)
        return values

    def source_of(self, path: KeyPath) -> Source:
        """Where the value at a path comes from; ``default`` where nobody wrote it."""
        node = self.root.get(*path)
        return node.source if node is not None else DEFAULT


def load_manifest(path: Path, overrides: Sequence[str] = (), *, load_local: bool = True) -> LoadedManifest:
    """Read, merge and validate a manifest file; nothing is imported but the plugins that it names.

    Args:
        path: The file; paths in it are relative to its folder, and so are those in ``overrides``.
        overrides: ``a.b=value`` as given to ``--set``, applied in order over the file.
        load_local: Whether plugins in local .py files are imported; without it their options are not validated.

    Raises:
        ManifestError: With every problem, one a line, in the order of the file: ``file:line:col: path: what is wrong``.
    """
    problems: list[Problem] = []
    root = read_layers(Path(path), problems)
    if root is None:
        refuse(problems)
        raise ManifestError(f"{path}: it can't be read")
    base = Path(path).resolve().parent
    root = apply_overrides(root, overrides, base, problems)
    return _finish(root, base, problems, load_local=load_local)


def manifest_from_dict(
    values: Mapping[str, Any], base: Path, *, name: str = "manifest", load_local: bool = True
) -> LoadedManifest:
    """A manifest of plain values, such as ``LoadedManifest.resolved`` gives; paths are relative to ``base``.

    Raises ``ManifestError`` as ``load_manifest`` does; ``name`` stands where the file would.
    """
    root = absolute_paths(node_of(values, Source(name)), Path(base))
    return _finish(root, Path(base).resolve(), [], load_local=load_local)


def _finish(root: Node, base: Path, problems: list[Problem], *, load_local: bool) -> LoadedManifest:
    state = validate(root, base, load_local=load_local)
    refuse([*problems, *state.problems, *check(state)])
    if state.manifest is None:
        raise ManifestError(f"{root.source}: the manifest can't be validated")
    return LoadedManifest(state.manifest, state.root, state.configs, state.unloaded, tuple(find_warnings(state)))
