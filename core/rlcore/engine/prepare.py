"""From groups of samples to the batch that is trained on, with only the columns that something reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlcore.data.batch import Batch
from rlcore.data.loss_weights import loss_weights
from rlcore.data.sample import Group, Sample, Segment
from rlcore.engine.estimate import estimate
from rlcore.errors import BrokenPluginError
from rlcore.manifest.schema import Manifest
from rlcore.plugins.capabilities import batch_columns
from rlcore.plugins.config import PluginRef
from rlcore.plugins.interfaces import AdvantageEstimator, LossSpec
from rlcore.plugins.loading import build, config_of
from rlcore.runtime.workers import Workers

ON_DEMAND = frozenset({"old_logprobs", "rollout_logprobs", "ref_logprobs", "baseline_reward"})
"""Columns that ``StepPlan`` has computed where an estimator or loss reads them."""

UpdatePreparation = Callable[[Batch], Batch]
"""What a policy loss does once over a whole update, before it is split over ranks and micro-batches."""


@dataclass(frozen=True)
class StepPlan:
    """What a step computes, decided once from the manifest; everything else is skipped."""

    updates_per_step: int
    """Optimizer steps on the samples of a full step."""
    old_logprobs: bool
    """Where a step has several updates or something else reads them; at the first update after sampling the ratio is 1
    by construction."""
    rollout_logprobs: bool
    """Where they are compared with the trainer's at every step."""
    reference: bool
    """Where there is a KL term, or something else reads its log-probs."""
    critic: bool
    """Where the estimator reads values."""
    greedy_baseline: bool
    """Where the estimator reads the reward of a greedy sample of each prompt."""
    loss: LossSpec

    @classmethod
    def of(cls, manifest: Manifest) -> StepPlan:
        """The plan of this manifest."""
        algorithm, trainer = manifest.algorithm, manifest.trainer
        per_update = trainer.prompts_per_update or manifest.data.prompts_per_step
        updates = trainer.epochs_per_batch * -(-manifest.data.prompts_per_step // per_update)
        kl = algorithm.kl if algorithm.kl and algorithm.kl.coef > 0 else None
        assert algorithm.loss is not None, "the manifest is not resolved"
        plugins = (algorithm.plugin("algorithm"), algorithm.loss.plugin("loss"))
        read = batch_columns(need for plugin in plugins for need in config_of(plugin).needs())
        corrects = algorithm.rollout_correction is not None
        in_reward = kl is not None and kl.placement == "reward"
        return cls(
            updates_per_step=updates,
            old_logprobs=updates > 1 or corrects or in_reward or "old_logprobs" in read,
            rollout_logprobs=corrects or "rollout_logprobs" in read,
            reference=kl is not None or "ref_logprobs" in read,
            critic="values" in read,
            greedy_baseline="baseline_reward" in read,
            loss=LossSpec(
                policy=algorithm.loss.plugin("loss"),
                kl_coef=kl.coef if kl and kl.placement == "loss" else 0.0,
                kl_estimator=kl.estimator if kl else "k3",
                entropy_coef=algorithm.entropy_coef,
                entropy=True,
            ),
        )


def to_batch(groups: Sequence[Group]) -> Batch:
    """All samples of the groups as one batch, with ``loss_mask``, ``group``, ``unit``, ``reward`` and the like.

    Each reward is a column of its own too, ``reward/NAME``. ``rollout_logprobs`` is there if every sample has log-probs
    from its engine, ``baseline_reward`` if every group has a greedy sample.
    """
    samples = [sample for group in groups for sample in group.samples]
    sequences = [np.concatenate([s.tokens for s in sample.segments]) for sample in samples]
    columns = {"loss_mask": _flat(samples, lambda s: np.full(len(s.tokens), s.kind == "generated", np.float32))}
    if all(s.logprobs is not None for sample in samples for s in sample.segments if s.kind == "generated"):
        columns["rollout_logprobs"] = _flat(
            samples, lambda s: s.logprobs if s.logprobs is not None else np.zeros(len(s.tokens), np.float32)
        )
    rows = {f"reward/{name}": [sample.rewards[name] for sample in samples] for name in samples[0].rewards}
    if all(group.baseline for group in groups):
        rows["baseline_reward"] = [group.baseline.reward for group in groups if group.baseline for _ in group.samples]
    return (
        Batch.from_sequences(sequences)
        .with_tokens(**columns)
        .with_samples(
            group=np.array([group.id for group in groups for _ in group.samples], np.int64),
            unit=np.arange(len(samples), dtype=np.int64),
            reward=np.array([sample.reward for sample in samples], np.float32),
            truncated=np.array([sample.truncated for sample in samples], bool),
            response_tokens=np.array([sample.response_tokens for sample in samples], np.int64),
            weight_version=np.array([sample.segments[-1].weight_version for sample in samples], np.int64),
            **{name: np.array(column, np.float32) for name, column in rows.items()},
        )
    )


def _flat(samples: Sequence[Sample], value: Callable[[Segment], NDArray[np.float32]]) -> NDArray[np.float32]:
    """A value of each segment, one after the other."""
    parts = [value(segment) for sample in samples for segment in sample.segments]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def add_columns(batch: Batch, plan: StepPlan, workers: Workers) -> Batch:
    """Add the log-probs and values that the plan asks for."""
    if plan.old_logprobs:
        batch = batch.with_tokens(old_logprobs=workers.policy.forward(batch, ["logprobs"])["logprobs"])
    if workers.reference is not None:
        workers.reference.onload()
        batch = batch.with_tokens(ref_logprobs=workers.reference.forward(batch, ["logprobs"])["logprobs"])
        workers.reference.offload()
    if workers.critic is not None:
        workers.critic.onload()
        batch = workers.critic.forward(batch, ["values"])
        workers.critic.offload()
    return batch


def update_preparation(loss: PluginRef) -> UpdatePreparation | None:
    """The loss's ``prepare``, or None where it has none, as most. The loss is built for this, here in the controller:
    a rank has a part of an update only.
    """
    prepare: UpdatePreparation | None = getattr(build(loss), "prepare", None)
    if prepare is None:
        return None

    def checked(update: Batch) -> Batch:
        prepared = prepare(update)
        if not isinstance(prepared, Batch) or not np.array_equal(prepared.offsets, update.offsets):
            raise BrokenPluginError(f"{loss}: prepare must return the update that it was given, with columns added")
        return prepared

    return checked


def updates(
    batch: Batch, manifest: Manifest, estimator: AdvantageEstimator, prepare_loss: UpdatePreparation | None = None
) -> Iterator[Batch]:
    """The batches of one step's optimizer steps, in order, each with advantages and loss weights of its own, and the
    columns that the policy loss adds.

    There is none if the estimator drops every row.
    """
    trainer, aggregate = manifest.trainer, manifest.algorithm.aggregate
    assert aggregate is not None, "the manifest is not resolved"
    batch = estimate(batch, estimator, manifest.algorithm.plugin("algorithm"))
    _, first = np.unique(batch["group"], return_index=True)
    groups = batch["group"][np.sort(first)]
    per_update = trainer.prompts_per_update or max(1, len(groups))
    for _ in range(trainer.epochs_per_batch):
        for start in range(0, len(groups), per_update):
            part = batch.select(np.isin(batch["group"], groups[start : start + per_update]))
            weights = loss_weights(part, aggregate, max_response_tokens=manifest.data.max_response_tokens)
            part = part.with_tokens(loss_weights=weights)
            yield prepare_loss(part) if prepare_loss else part
