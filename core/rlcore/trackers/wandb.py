"""Tracker ``wandb``: Weights & Biases, online or offline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from rlcore import PluginConfig, Tracker, TrackerContext, hookimpl
from rlcore.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlcore.plugins.interfaces import Metrics


class Config(PluginConfig):
    """Send metrics to Weights & Biases. The key comes from WANDB_API_KEY or ``wandb login``, never from a manifest."""

    project: str = "rlcore"
    """Project that the run is listed in."""
    entity: str | None = None
    """User or team; null is the default of the account."""
    name: str | None = None
    """Name of the run; null is the manifest's name."""
    mode: Literal["online", "offline"] = "online"
    """offline writes into the run's folder, for ``wandb sync`` later."""


@hookimpl
def rlcore_tracker(config: Config, context: TrackerContext) -> Tracker:
    """The tracker; a resumed run goes on with the same record."""
    return WandbTracker(config, context)


class WandbTracker(Tracker):
    """Metrics against their own ``step``: a resumed run repeats steps, which wandb's own counter would throw away."""

    def __init__(self, config: Config, context: TrackerContext) -> None:
        import wandb

        known = context.state.get("id")
        try:
            self._run = wandb.init(
                project=config.project,
                entity=config.entity,
                name=config.name or context.run_name,
                id=known,
                resume="allow" if known and config.mode == "online" else None,
                dir=str(context.folder),
                config=dict(context.manifest),
                mode=config.mode,
                # Output stays untouched: the console tracker's progress would be recorded as thousands of lines.
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.errors.Error as error:
            raise PluginError(
                f"tracker/wandb can't start: {error}. Run `wandb login`, set WANDB_API_KEY, or use mode: offline"
            ) from error
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Metrics) -> None:
        """Send the metrics of a step."""
        self._run.log({"step": step, **metrics})

    def state(self) -> Mapping[str, Any]:
        """The id of wandb's record."""
        return {"id": self._run.id}

    def close(self) -> None:
        """Finish the record, sending what is left."""
        self._run.finish()
