"""Everything in this process: the runtime for a laptop or one GPU."""

from __future__ import annotations

from rlcore.data.tokenizer import Tokenizer
from rlcore.engine.engine_group import EngineGroup
from rlcore.engine.prepare import StepPlan
from rlcore.errors import ManifestError
from rlcore.manifest.schema import Manifest, ResourcesSection
from rlcore.plugins.config import PluginRef
from rlcore.plugins.interfaces import Role, RolloutContext, TrainBackend, TrainContext
from rlcore.plugins.loading import build
from rlcore.runtime.workers import Workers


def choose_device(resources: ResourcesSection) -> str:
    """The device of the run, "cpu" or "cuda"; sets the number of torch's threads on the way."""
    import torch

    if resources.threads:
        torch.set_num_threads(resources.threads)
    found = torch.cuda.is_available()
    if resources.device == "cuda" and not found:
        raise ManifestError("resources.device: cuda, but torch finds no GPU here; use auto or cpu")
    return "cuda" if found and resources.device != "cpu" else "cpu"


def start_workers(manifest: Manifest, plan: StepPlan, tokenizer: Tokenizer, device: str, total_updates: int) -> Workers:
    """Load the models that the plan needs and start the engine."""
    from rlcore.torch.weights import open_channel

    def backend(role: Role) -> TrainBackend:
        own = {"policy": manifest.trainer, "reference": manifest.reference, "critic": manifest.critic}[role]
        train = own or manifest.trainer
        model = manifest.model
        if role == "critic" and manifest.critic and manifest.critic.path:
            # A revision is one of model.path.
            model = model.model_copy(update={"path": manifest.critic.path, "revision": None})
        # The policy's learning rate follows its own updates: it has none while the critic warms up.
        waits = manifest.critic.warmup_steps * plan.updates_per_step if manifest.critic and role == "policy" else 0
        context = TrainContext(
            role=role,
            model=model,
            train=train,
            temperature=manifest.rollout.temperature,
            total_updates=max(1, total_updates - waits),
            seed=manifest.run.seed,
            device=device,
        )
        started: TrainBackend = build(train.plugin("trainer"), context)
        return started

    policy = backend("policy")
    reference = backend("reference") if plan.reference else None
    critic = backend("critic") if plan.critic else None
    ref: PluginRef = manifest.rollout.plugin("rollout")
    engine = build(
        ref,
        RolloutContext(
            model=manifest.model,
            tokenizer=tokenizer,
            max_tokens=manifest.longest_tokens,
            device=device,
            seed=manifest.run.seed,
        ),
    )
    return Workers(policy, reference, critic, EngineGroup([engine]), lambda: [open_channel(policy)])
