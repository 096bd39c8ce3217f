"""The loop: collect, prepare, update, sync."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rlcore.data.batch import Batch
from rlcore.data.sample import Group
from rlcore.engine import prepare
from rlcore.engine.collect import Collector
from rlcore.engine.correction import correct, mismatch_metrics
from rlcore.engine.evaluate import Evaluation
from rlcore.engine.health import LOGPROB_LIMITS, HealthChecks
from rlcore.engine.kl_reward import KlReward
from rlcore.engine.probe import compare_logprobs
from rlcore.engine.stats import mean_metrics, rollout_metrics
from rlcore.engine.stopping import Stopping, StopRequested
from rlcore.engine.tracking import Tracking
from rlcore.errors import NoSpreadError
from rlcore.manifest.schema import Manifest
from rlcore.plugins.interfaces import AdvantageEstimator, ValueLossSpec
from rlcore.run.checkpoints import Checkpoint, CheckpointStore
from rlcore.run.rollouts import RolloutStore
from rlcore.runtime.workers import Workers


@dataclass
class Loop:
    """Trains the policy of ``workers`` on what the collector brings, one step at a time.

    Its state between two steps is ``steps_done``, ``version`` and where the collector is; with the workers' own state
    that is all a checkpoint needs. With one version of weights per step nothing depends on timing.
    """

    manifest: Manifest
    plan: prepare.StepPlan
    workers: Workers
    collector: Collector
    estimator: AdvantageEstimator
    kl_reward: KlReward | None
    evaluation: Evaluation | None
    tracking: Tracking
    checkpoints: CheckpointStore
    rollouts: RolloutStore
    stopping: Stopping
    total_steps: int
    prepare_loss: prepare.UpdatePreparation | None = None
    health: HealthChecks = field(init=False)
    steps_done: int = 0
    version: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    _boundary: dict[str, Any] = field(default_factory=dict)
    _compared: bool = False

    def __post_init__(self) -> None:
        self.health = HealthChecks(logprob_limit=LOGPROB_LIMITS[self.manifest.model.dtype])

    def run(self) -> None:
        """All steps that are left, with evaluation and checkpoints when they are due."""
        self.sync()
        self._boundary = self.state()
        try:
            if self.metrics or (self.steps_done == 0 and self.manifest.run.eval_first):
                self.conclude()
            while not self.finished:
                self.step()
                self.conclude()
        except (StopRequested, NoSpreadError):
            self.save()
            raise
        self.save()

    @property
    def finished(self) -> bool:
        """Whether every step is done, or every prompt used up in place of others."""
        return self.steps_done >= self.total_steps or self.collector.sampler.done

    def step(self) -> None:
        """Sample, learn, and hand the new weights to the engines."""
        start = time.perf_counter()
        with self.stopping.at_once():
            groups = self.collect()
            batch = self.prepare(groups)
        self.update(batch)
        self.sync()
        self.metrics["time/step_seconds"] = time.perf_counter() - start

    def collect(self) -> list[Group]:
        """Sample and score prompts until there is enough to train on."""
        with self.tracking.phase("generate"):
            self.workers.engines.wake()
            try:
                groups, sampled, metrics = self.collector.collect(
                    want_logprobs=self.plan.rollout_logprobs or not self._compared, progress=self.tracking.progress
                )
            finally:
                self.workers.engines.sleep()
        self.metrics |= rollout_metrics(sampled) | metrics
        self.rollouts.write(self.steps_done + 1, sampled)
        return groups

    def prepare(self, groups: Sequence[Group]) -> Batch:
        """The batch with the columns that the estimator and the losses read."""
        with self.tracking.phase("prepare"):
            batch = prepare.to_batch(groups)
            self.workers.policy.onload()
            if not self._compared:
                self._compare(batch)
            batch = prepare.add_columns(batch, self.plan, self.workers)
            if self.plan.rollout_logprobs:
                self.metrics |= mismatch_metrics(batch)
            if settings := self.manifest.algorithm.rollout_correction:
                batch, metrics = correct(batch, settings)
                self.metrics |= metrics
            if self.kl_reward:
                batch, metrics = self.kl_reward(batch)
                self.metrics |= metrics
            return batch

    def update(self, batch: Batch) -> None:
        """One optimizer step for each part of the batch; the weights after them are a new version."""
        seen: list[dict[str, float]] = []
        parts = prepare.updates(batch, self.manifest, self.estimator, self.prepare_loss)
        with self.tracking.phase("update"):
            for done, part in enumerate(parts, start=1):
                seen.append(self._learn(part))
                self.tracking.progress(done, self.plan.updates_per_step)
            for backend in (self.workers.critic, self.workers.policy):
                if backend is not None:
                    backend.offload()
        if not seen:
            self.tracking.message("warning", "the estimator dropped every sample: nothing was learnt in this step")
        self.metrics |= mean_metrics(seen)
        self.metrics["run/updates"] = float(len(seen))
        self.steps_done += 1
        self.version += 1

    def _learn(self, part: Batch) -> dict[str, float]:
        """An optimizer step of the critic, if there is one, and of the policy once the critic is warm."""
        metrics: dict[str, float] = {}
        critic, settings = self.workers.critic, self.manifest.critic
        if critic is not None and settings is not None:
            critic.onload()
            metrics |= critic.forward_backward(part, ValueLossSpec(settings.value_clip))
            metrics |= {f"critic/{name}": value for name, value in critic.optimizer_step().items()}
            if self.steps_done < settings.warmup_steps:
                return metrics
        metrics |= self.workers.policy.forward_backward(part, self.plan.loss)
        return metrics | {f"policy/{name}": value for name, value in self.workers.policy.optimizer_step().items()}

    def sync(self) -> None:
        """Give the engines the weights as they are now."""
        with self.tracking.phase("sync"):
            self.workers.sync(self.version)

    def conclude(self) -> None:
        """After a step (or before the first): evaluate, record and save, each if it is due.

        A stop during the evaluation keeps the step's metrics in the checkpoint, and the resumed run evaluates first.
        """
        self._boundary = self.state()
        if self._evaluation_due():
            self.evaluate()
        self._record()
        self._boundary = self.state()
        every = self.manifest.run.save_every
        if every and self.steps_done % every == 0:
            self.save()
        self.stopping.check()

    def evaluate(self) -> None:
        """Answer the validation prompts."""
        assert self.evaluation is not None
        with self.stopping.at_once(), self.tracking.phase("evaluate"):
            self.workers.engines.wake()
            try:
                self.metrics |= self.evaluation.run(self.tracking.progress)
            finally:
                self.workers.engines.sleep()

    def save(self) -> None:
        """Write a checkpoint of the last whole step, unless there is one."""
        step = self._boundary["step"]
        if step == 0 or self.checkpoints.has(step):
            return
        with self.tracking.phase("save"):
            state = self._boundary | {"trackers": self.tracking.state()}
            self.checkpoints.save(step, self.workers.save, state)

    def state(self) -> dict[str, Any]:
        """What a resumed run needs beside the model and the optimizer; ``metrics`` are those not yet recorded."""
        return {
            "step": self.steps_done,
            "version": self.version,
            "collector": self.collector.state(),
            "kl_reward": self.kl_reward.state() if self.kl_reward else None,
            "health": self.health.state(),
            "metrics": dict(self.metrics),
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint as if the run had never stopped."""
        state = checkpoint.state
        self.workers.load(checkpoint.path)
        self.steps_done, self.version = state["step"], state["version"]
        self.collector.restore(state["collector"])
        if self.kl_reward:
            self.kl_reward.restore(state["kl_reward"])
        self.health.restore(state["health"])
        self.metrics = dict(state["metrics"])

    def _evaluation_due(self) -> bool:
        run = self.manifest.run
        if self.steps_done == 0:
            return run.eval_first
        return run.eval_every is not None and (self.finished or self.steps_done % run.eval_every == 0)

    def _record(self) -> None:
        """Log the metrics gathered since the last record, with times and speeds, and say what they mean."""
        metrics = self.metrics | self.tracking.take_times()
        tokens = metrics.pop("response/tokens_total", 0.0)
        for phase, speed in (("generate", "speed/generated_tokens_per_second"), ("step", "speed/tokens_per_second")):
            if tokens and metrics.get(f"time/{phase}_seconds"):
                metrics[speed] = tokens / metrics[f"time/{phase}_seconds"]
        self.metrics = {}
        for sentence in self.health.check(self.steps_done, metrics):
            self.tracking.message("warning", f"step {self.steps_done}: {sentence}")
        self.tracking.log(self.steps_done, metrics)

    def _compare(self, batch: Batch) -> None:
        """Engine against trainer, once a process. Metrics are those of the first step only: resuming must add none."""
        self._compared = True
        apart = compare_logprobs(batch, self.workers.policy)
        self.metrics |= apart if self.version == 0 else {}
        if apart:
            nats = apart["rollout/logprob_difference_max"]
            self.tracking.message("info", f"engine and trainer agree: log-probs differ by at most {nats:.2g}")
