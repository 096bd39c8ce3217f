"""The loop: collect, prepare, update, sync."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rlcore.data.batch import Batch
from rlcore.data.prompts import PromptSet
from rlcore.data.sample import Group, Sampling
from rlcore.data.sampler import PromptSampler
from rlcore.engine import prepare
from rlcore.engine.evaluate import Evaluation
from rlcore.engine.health import LOGPROB_LIMITS, HealthChecks
from rlcore.engine.probe import compare_logprobs
from rlcore.engine.source import GroupRequest, GroupSource
from rlcore.engine.stats import mean_metrics, rollout_metrics
from rlcore.engine.stopping import Stopping, StopRequested
from rlcore.engine.tracking import Tracking
from rlcore.manifest.schema import Manifest
from rlcore.plugins.interfaces import AdvantageEstimator
from rlcore.run.checkpoints import Checkpoint, CheckpointStore
from rlcore.run.rollouts import RolloutStore
from rlcore.runtime.workers import Workers


@dataclass
class Loop:
    """Trains the policy of ``workers`` on ``prompts``, one step at a time.

    Its state between two steps is ``steps_done``, ``version`` and the sampler's position; with the workers' own state
    that is all a checkpoint needs. With one version of weights per step nothing depends on timing.
    """

    manifest: Manifest
    plan: prepare.StepPlan
    workers: Workers
    source: GroupSource
    estimator: AdvantageEstimator
    prompts: PromptSet
    sampler: PromptSampler
    evaluation: Evaluation | None
    tracking: Tracking
    checkpoints: CheckpointStore
    rollouts: RolloutStore
    stopping: Stopping
    total_steps: int
    health: HealthChecks = field(init=False)
    steps_done: int = 0
    version: int = 0
    groups_asked: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    _boundary: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.health = HealthChecks(logprob_limit=LOGPROB_LIMITS[self.manifest.model.dtype])

    def run(self) -> None:
        """All steps that are left, with evaluation and checkpoints when they are due."""
        self.sync()
        self._boundary = self.state()
        try:
            if self.metrics or (self.steps_done == 0 and self.manifest.run.eval_first):
                self.conclude()
            while self.steps_done < self.total_steps:
                self.step()
                self.conclude()
        except StopRequested:
            self.save()
            raise
        self.save()

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
        """Sample and score the next prompts."""
        step = self.sampler.next()
        wanted = [
            GroupRequest(
                id=self.groups_asked + i,
                prompt=self.prompts.prompts[index],
                samples=self.manifest.rollout.samples_per_prompt,
                sampling=self._sampling(),
                visit=step.epoch,
                want_logprobs=self.version == 0,
            )
            for i, index in enumerate(step.indices)
        ]
        self.groups_asked += len(wanted)
        with self.tracking.phase("generate"):
            self.workers.engines.wake()
            try:
                groups = self.source.collect(wanted, self.tracking.progress)
            finally:
                self.workers.engines.sleep()
        self.metrics |= rollout_metrics(groups) | {"run/epoch": float(step.epoch)}
        self.rollouts.write(self.steps_done + 1, groups)
        return groups

    def prepare(self, groups: Sequence[Group]) -> Batch:
        """The batch with the columns that the estimator and the loss read."""
        with self.tracking.phase("prepare"):
            batch = prepare.to_batch(groups)
            self.workers.policy.onload()
            if "rollout_logprobs" in batch:
                apart = compare_logprobs(batch, self.workers.policy)
                self.metrics |= apart
                if apart:
                    nats = apart["rollout/logprob_difference_max"]
                    self.tracking.message("info", f"engine and trainer agree: log-probs differ by at most {nats:.2g}")
            batch = prepare.add_columns(batch, self.plan, self.manifest, self.workers.policy, self.workers.reference)
        kl = self.manifest.algorithm.kl
        if kl and "token_rewards" in batch:
            self.metrics["reward/kl_to_reference"] = float(
                -batch["token_rewards"].sum() / kl.coef / batch["loss_mask"].sum()
            )
        return batch

    def update(self, batch: Batch) -> None:
        """One optimizer step for each part of the batch; the weights after them are a new version."""
        seen: list[dict[str, float]] = []
        parts = prepare.updates(batch, self.manifest, self.estimator)
        with self.tracking.phase("update"):
            for done, part in enumerate(parts, start=1):
                metrics = dict(self.workers.policy.forward_backward(part, self.plan.loss))
                metrics |= {f"policy/{name}": value for name, value in self.workers.policy.optimizer_step().items()}
                seen.append(metrics)
                self.tracking.progress(done, self.plan.updates_per_step)
            self.workers.policy.offload()
        if not seen:
            self.tracking.message("warning", f"step {self.steps_done + 1} trains on nothing: every sample was dropped")
        self.metrics |= mean_metrics(seen)
        self.metrics["run/updates"] = float(len(seen))
        self.steps_done += 1
        self.version += 1

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
            self.checkpoints.save(step, self.workers.policy.save, state)

    def state(self) -> dict[str, Any]:
        """What a resumed run needs beside the model and the optimizer; ``metrics`` are those not yet recorded."""
        return {
            "step": self.steps_done,
            "version": self.version,
            "groups_asked": self.groups_asked,
            "sampler": self.sampler.state(),
            "health": self.health.state(),
            "metrics": dict(self.metrics),
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint as if the run had never stopped."""
        state = checkpoint.state
        self.workers.policy.load(checkpoint.path)
        self.steps_done, self.version = state["step"], state["version"]
        self.groups_asked = state["groups_asked"]
        self.sampler.restore(state["sampler"])
        self.health.restore(state["health"])
        self.metrics = dict(state["metrics"])

    def _evaluation_due(self) -> bool:
        run = self.manifest.run
        if self.steps_done == 0:
            return run.eval_first
        last = self.steps_done == self.total_steps
        return run.eval_every is not None and (last or self.steps_done % run.eval_every == 0)

    def _record(self) -> None:
        """Log the metrics gathered since the last record, with times and speeds, and say what they mean."""
        metrics = self.metrics | self.tracking.take_times()
        tokens = metrics.pop("response/tokens_total", 0.0)
        for phase, speed in (("generate", "speed/generated_tokens_per_second"), ("step", "speed/tokens_per_second")):
            if tokens and metrics.get(f"time/{phase}_seconds"):
                metrics[speed] = tokens / metrics[f"time/{phase}_seconds"]
        self.metrics = {}
        for sentence in self.health.check(self.steps_done, metrics):
            self.tracking.message("warning", sentence)
        self.tracking.log(self.steps_done, metrics)

    def _sampling(self) -> Sampling:
        data, rollout = self.manifest.data, self.manifest.rollout
        return Sampling(
            max_tokens=data.max_response_tokens,
            temperature=rollout.temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
            min_tokens=rollout.min_tokens,
            stop=tuple(rollout.stop),
            ignore_eos=rollout.ignore_eos,
        )
