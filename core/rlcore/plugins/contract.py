"""The parts of the plugin contract that are checked by looking: arguments of hooks, classes of options, products."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from rlcore.manifest.schema import AlgorithmSection, PluginSection, RewardSection, RolloutSection, TrainerSection
from rlcore.plugins import hookspecs
from rlcore.plugins.config import AlgorithmConfig, PluginConfig
from rlcore.plugins.hookspecs import HOOKS
from rlcore.plugins.interfaces import RolloutEngine, Tracker, TrainBackend

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

    from rlcore.plugins.kinds import Kind

SECTIONS: Mapping[Kind, type[PluginSection]] = {
    "trainer": TrainerSection,
    "rollout": RolloutSection,
    "algorithm": AlgorithmSection,
    "loss": PluginSection,
    "reward": RewardSection,
    "tracker": PluginSection,
}
"""The section of the manifest that a plugin's options share with the core's own keys."""

_BASES: Mapping[Kind, type] = {"trainer": TrainBackend, "rollout": RolloutEngine, "tracker": Tracker}


def hook_arguments(kind: Kind) -> tuple[str, ...]:
    """Names of the arguments that the kind's hook may take."""
    return tuple(inspect.signature(getattr(hookspecs, HOOKS[kind])).parameters)


def hook_signature(kind: Kind) -> str:
    """``rlcore_reward(config, context)``."""
    return f"{HOOKS[kind]}({', '.join(hook_arguments(kind))})"


def check_config(kind: Kind, config: Any) -> str | None:
    """What is wrong with a class of options, or None."""
    base = AlgorithmConfig if kind == "algorithm" else PluginConfig
    if config is None:
        return f"config of {HOOKS[kind]} has no annotation; annotate it with its options, a subclass of {base.__name__}"
    if not (isinstance(config, type) and issubclass(config, base)):
        return f"config of {HOOKS[kind]} is annotated {config!r}; it must be a subclass of rlcore.{base.__name__}"
    taken = _names(SECTIONS[kind]) | {"needs", "provides", "defaults"}
    if clash := sorted(_names(config) & taken):
        return f"option {', '.join(map(repr, clash))} of {config.__name__} is the core's in a {kind} section; rename it"
    return None


def check_product(kind: Kind, product: Any) -> str | None:
    """What is wrong with what a hook returned, or None."""
    if kind in _BASES:
        fits, wanted = isinstance(product, _BASES[kind]), f"a {_BASES[kind].__name__}"
    elif kind == "reward":
        fits, wanted = callable(product) or hasattr(product, "score_batch"), "a function, or an object with score_batch"
    else:
        fits, wanted = callable(product), "a function"
    return None if fits else f"{HOOKS[kind]} returned {product!r}; it must return {wanted}"


def _names(model: type[BaseModel]) -> set[str]:
    """Field names and the names they have in a manifest."""
    return {name for name, field in model.model_fields.items()} | {
        field.alias for field in model.model_fields.values() if field.alias
    }
