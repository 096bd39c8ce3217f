"""How a trainer's weights reach an engine of the same process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rlcore.errors import WeightSyncError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    import torch

    from rlcore.plugins.interfaces import TrainBackend, WeightReceiver


@dataclass
class LocalReceiver:
    """The engine's end where trainer and engine share a process; ``way`` says which of the two may be asked for."""

    backend: TrainBackend
    way: Literal["in_place", "stream"]

    def module(self) -> AbstractContextManager[torch.nn.Module]:
        """The trainer's own module, valid inside the context; the trainer can't run meanwhile."""
        if self.way != "in_place":
            raise WeightSyncError("the channel was opened to stream weights, not to lend the trainer's module")
        return self.backend.generation_model()

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every weight in turn, checked against what the trainer said it would send."""
        if self.way != "stream":
            raise WeightSyncError("the channel was opened to lend the trainer's module, not to stream weights")
        specs = self.backend.weight_specs()
        for spec, (name, tensor) in zip(specs, self.backend.weights(), strict=True):
            got = (name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            if got != (spec.name, spec.shape, spec.dtype):
                raise WeightSyncError(f"the trainer promised {spec} and sent {got}")
            yield name, tensor


def open_channel(backend: TrainBackend, way: Literal["in_place", "stream"] = "in_place") -> WeightReceiver:
    """Connect a trainer with an engine of this process, once per sync."""
    return LocalReceiver(backend, way)
