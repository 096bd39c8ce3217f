"""From groups of samples to the batch that is trained on, with only the columns that something reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlcore.data.batch import Batch
from rlcore.data.loss_weights import loss_weights
from rlcore.data.sample import Group, Sample, Segment
from rlcore.manifest.schema import Manifest
from rlcore.plugins.interfaces import AdvantageEstimator, LossSpec, TrainBackend


@dataclass(frozen=True)
class StepPlan:
    """What a step computes, decided once from the manifest; everything else is skipped."""

    updates_per_step: int
    """Optimizer steps on the samples of a full step."""
    old_logprobs: bool
    """Only where a step has several updates; at the first update after sampling the ratio is 1 by construction."""
    reference: bool
    """Only where there is a KL term."""
    loss: LossSpec

    @classmethod
    def of(cls, manifest: Manifest) -> StepPlan:
        """The plan of this manifest."""
        algorithm, trainer = manifest.algorithm, manifest.trainer
        per_update = trainer.prompts_per_update or manifest.data.prompts_per_step
        updates = trainer.epochs_per_batch * -(-manifest.data.prompts_per_step // per_update)
        kl = algorithm.kl if algorithm.kl and algorithm.kl.coef > 0 else None
        assert algorithm.loss is not None, "the manifest is not resolved"
        return cls(
            updates_per_step=updates,
            old_logprobs=updates > 1,
            reference=kl is not None,
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

    ``rollout_logprobs`` is there if every sample has log-probs from its engine.
    """
    samples = [sample for group in groups for sample in group.samples]
    sequences = [np.concatenate([s.tokens for s in sample.segments]) for sample in samples]
    columns = {"loss_mask": _flat(samples, lambda s: np.full(len(s.tokens), s.kind == "generated", np.float32))}
    if all(s.logprobs is not None for sample in samples for s in sample.segments if s.kind == "generated"):
        columns["rollout_logprobs"] = _flat(
            samples, lambda s: s.logprobs if s.logprobs is not None else np.zeros(len(s.tokens), np.float32)
        )
    return (
        Batch.from_sequences(sequences)
        .with_tokens(**columns)
        .with_samples(
            group=np.array([group.id for group in groups for _ in group.samples], np.int64),
            unit=np.arange(len(samples), dtype=np.int64),
            reward=np.array([sample.reward for sample in samples], np.float32),
            truncated=np.array([sample.truncated for sample in samples], bool),
            weight_version=np.array([sample.segments[-1].weight_version for sample in samples], np.int64),
        )
    )


def _flat(samples: Sequence[Sample], value: Callable[[Segment], NDArray[np.float32]]) -> NDArray[np.float32]:
    """A value of each segment, one after the other."""
    parts = [value(segment) for sample in samples for segment in sample.segments]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def add_columns(
    batch: Batch, plan: StepPlan, manifest: Manifest, policy: TrainBackend, reference: TrainBackend | None
) -> Batch:
    """Add the log-probs that the plan asks for, and the KL that is taken off the reward."""
    if plan.old_logprobs:
        batch = batch.with_tokens(old_logprobs=policy.forward(batch, ["logprobs"])["logprobs"])
    if reference is not None:
        reference.onload()
        batch = batch.with_tokens(ref_logprobs=reference.forward(batch, ["logprobs"])["logprobs"])
        reference.offload()
    kl = manifest.algorithm.kl
    if kl and plan.reference and kl.placement == "reward":
        from rlcore.torch.kl import kl_numpy

        if "old_logprobs" not in batch:
            batch = batch.with_tokens(old_logprobs=policy.forward(batch, ["logprobs"])["logprobs"])
        divergence = kl_numpy(kl.estimator, batch["old_logprobs"], batch["ref_logprobs"])
        # where, not times the mask: log-probs of masked tokens may be anything
        batch = batch.with_tokens(token_rewards=np.where(batch["loss_mask"] > 0, -kl.coef * divergence, 0))
    return batch


def updates(batch: Batch, manifest: Manifest, estimator: AdvantageEstimator) -> Iterator[Batch]:
    """The batches of one step's optimizer steps, in order, each with advantages and loss weights of its own.

    There is none if the estimator drops every row.
    """
    trainer, aggregate = manifest.trainer, manifest.algorithm.aggregate
    assert aggregate is not None, "the manifest is not resolved"
    batch = estimator(batch)
    _, first = np.unique(batch["group"], return_index=True)
    groups = batch["group"][np.sort(first)]
    per_update = trainer.prompts_per_update or max(1, len(groups))
    for _ in range(trainer.epochs_per_batch):
        for start in range(0, len(groups), per_update):
            part = batch.select(np.isin(batch["group"], groups[start : start + per_update]))
            weights = loss_weights(part, aggregate, max_response_tokens=manifest.data.max_response_tokens)
            yield part.with_tokens(loss_weights=weights)
