"""Train with PyTorch's fully sharded data parallelism (FSDP2)."""

from __future__ import annotations

from rlcore import PluginConfig, TrainBackend, TrainContext, hookimpl


class Config(PluginConfig):
    """Shard parameters, gradients and optimizer state over ranks; one rank works as well."""

    reshard_after_forward: bool = True
    """Free a layer's gathered parameters until its backward pass: less memory, one more gather."""

    def provides(self) -> frozenset[str]:
        """Ways to hand weights to an engine, and a value head."""
        return frozenset({"weights:in_place", "weights:stream", "trains:critic"})


@hookimpl
def rlcore_train_backend(config: Config, context: TrainContext) -> TrainBackend:
    """Load the model of one role on this rank and shard it."""
    from rlcore_fsdp.backend import FsdpBackend

    return FsdpBackend(config, context)
