"""What every plugin of a kind must do, as tests to subclass in the plugin's own repository (needs pytest)::

    from rlcore.testing.contracts import RewardContract
    from rlcore.testing.samples import make_sample

    class TestMyReward(RewardContract):
        plugin = "my-reward"
        samples = (make_sample("a short answer", 42),)

pytest finds the inherited tests. A test that can't hold for a plugin is switched off by a class attribute that says
why (``deterministic = False``), not by overriding it.
"""

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{module}" for module in ("plugin", "reward", "advantage", "rollout", "train"))
)

from rlcore.testing.contracts.advantage import AdvantageContract  # noqa: E402
from rlcore.testing.contracts.reward import RewardContract  # noqa: E402
from rlcore.testing.contracts.rollout import RolloutContract  # noqa: E402
from rlcore.testing.contracts.train import TrainBackendContract  # noqa: E402

__all__ = ["AdvantageContract", "RewardContract", "RolloutContract", "TrainBackendContract"]
