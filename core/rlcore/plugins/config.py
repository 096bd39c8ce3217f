"""What a plugin's options are, and how a plugin with its options is named across processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from rlcore.plugins.kinds import GROUPS as GROUPS
from rlcore.plugins.kinds import Kind as Kind
from rlcore.plugins.local import is_local

if TYPE_CHECKING:
    from rlcore.plugins.interfaces import AlgorithmContext


class PluginConfig(BaseModel):
    """Options of a plugin: subclass it, give each field a type, a default and a sentence under it.

    The fields are the one source of validation, ``rlcore plugins show``, the JSON Schema and the docs. They sit in the
    plugin's section of the manifest beside the options that the core defines for that kind, so a name that the core
    uses there is refused.

    The hook's ``config`` argument names the class: ``def rlcore_reward(config: MyConfig)``.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, protected_namespaces=(), allow_inf_nan=False
    )

    def needs(self) -> frozenset[str]:
        """Capabilities that something else in the run must provide, such as ``batch:values`` (docs/capabilities.md)."""
        return frozenset()

    def provides(self) -> frozenset[str]:
        """Capabilities that this plugin brings into the run."""
        return frozenset()


class AlgorithmConfig(PluginConfig):
    """Options of an advantage estimator, with what it brings to the rest of the ``algorithm`` section."""

    def defaults(self) -> Mapping[str, Any]:
        """Values for keys of the ``algorithm`` section that the manifest leaves out, such as ``{"loss": "clip"}``."""
        return {}

    def conflicts(self, context: AlgorithmContext) -> Mapping[str, str]:
        """What is wrong between these options and the rest of the manifest, by option; checked before a run starts."""
        return {}


@dataclass(frozen=True)
class PluginRef:
    """A plugin by name with its options: all that crosses a process; the object is built where it is used.

    ``name`` is an entry-point name, or the absolute path of a local ``.py`` file. ``options`` are plain values.
    """

    kind: Kind
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if is_local(self.name) else f"{self.kind}/{self.name}"
