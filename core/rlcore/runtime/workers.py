"""The workers of a run: who trains, who generates, and how weights get from one to the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlcore.engine.engine_group import EngineGroup
from rlcore.plugins.interfaces import TrainBackend, WeightReceiver


@dataclass
class Workers:
    """Handles for the controller; it doesn't see where they live.

    ``open_channel`` gives one receiver per engine, each checked against the policy's weights.
    """

    policy: TrainBackend
    reference: TrainBackend | None
    critic: TrainBackend | None
    engines: EngineGroup
    open_channel: Callable[[], Sequence[WeightReceiver]]

    def sync(self, version: int) -> None:
        """Give every engine the policy's weights as they are now."""
        self.engines.receive_weights(self.open_channel(), version)

    def save(self, folder: Path) -> None:
        """Write what a resumed run loads: the policy, and the critic in a folder of its own."""
        self.policy.save(folder)
        if self.critic is not None:
            self.critic.save(folder / "critic")

    def load(self, folder: Path) -> None:
        """Restore what ``save`` wrote."""
        self.policy.load(folder)
        if self.critic is not None:
            self.critic.load(folder / "critic")

    def close(self) -> None:
        """Release processes and memory; engines first, since they may borrow the policy's weights."""
        self.engines.close()
        for backend in (self.reference, self.critic, self.policy):
            if backend is not None:
                backend.close()
