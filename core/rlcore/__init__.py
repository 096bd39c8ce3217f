"""What a plugin author imports, and nothing else.

Names load on first use, so that ``import rlcore`` and the command line stay quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pluggy import HookimplMarker

if TYPE_CHECKING:
    from rlcore.data.batch import Batch as Batch
    from rlcore.data.sample import Completion as Completion
    from rlcore.data.sample import Request as Request
    from rlcore.data.sample import Sample as Sample
    from rlcore.errors import RlcoreError as RlcoreError
    from rlcore.plugins.config import AlgorithmConfig as AlgorithmConfig
    from rlcore.plugins.config import PluginConfig as PluginConfig
    from rlcore.plugins.interfaces import AdvantageEstimator as AdvantageEstimator
    from rlcore.plugins.interfaces import AlgorithmContext as AlgorithmContext
    from rlcore.plugins.interfaces import LossSpec as LossSpec
    from rlcore.plugins.interfaces import Reward as Reward
    from rlcore.plugins.interfaces import RewardContext as RewardContext
    from rlcore.plugins.interfaces import RolloutContext as RolloutContext
    from rlcore.plugins.interfaces import RolloutEngine as RolloutEngine
    from rlcore.plugins.interfaces import Tracker as Tracker
    from rlcore.plugins.interfaces import TrackerContext as TrackerContext
    from rlcore.plugins.interfaces import TrainBackend as TrainBackend
    from rlcore.plugins.interfaces import TrainContext as TrainContext
    from rlcore.plugins.interfaces import WeightReceiver as WeightReceiver
    from rlcore.plugins.interfaces import WeightSpec as WeightSpec

__version__ = "0.1.0"

hookimpl = HookimplMarker("rlcore")
"""Marks the function of a plugin module that implements its kind's hook."""

_HOME = {
    "Batch": "rlcore.data.batch",
    **dict.fromkeys(("Completion", "Request", "Sample"), "rlcore.data.sample"),
    "RlcoreError": "rlcore.errors",
    **dict.fromkeys(("AlgorithmConfig", "PluginConfig"), "rlcore.plugins.config"),
    **dict.fromkeys(
        (
            "AdvantageEstimator",
            "AlgorithmContext",
            "LossSpec",
            "Reward",
            "RewardContext",
            "RolloutContext",
            "RolloutEngine",
            "Tracker",
            "TrackerContext",
            "TrainBackend",
            "TrainContext",
            "WeightReceiver",
            "WeightSpec",
        ),
        "rlcore.plugins.interfaces",
    ),
}

__all__ = ["__version__", "hookimpl", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'rlcore' has no attribute {name!r}; plugin authors have: {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
