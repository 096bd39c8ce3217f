"""From a manifest to a finished run. Everything that can be wrong is looked at before a model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlcore.data.prompts import PromptSet, load_prompt_set
from rlcore.data.sampler import PromptSampler
from rlcore.data.tokenizer import Tokenizer
from rlcore.engine.collect import Collector
from rlcore.engine.evaluate import Evaluation
from rlcore.engine.kl_reward import KlReward
from rlcore.engine.loop import Loop
from rlcore.engine.prepare import StepPlan, UpdatePreparation, update_preparation
from rlcore.engine.scoring import Scorer
from rlcore.engine.source import LiveSource
from rlcore.engine.stopping import Stopping, StopRequested
from rlcore.engine.tracking import Tracking
from rlcore.errors import CheckpointError
from rlcore.manifest.load import LoadedManifest
from rlcore.manifest.schema import Manifest
from rlcore.plugins.interfaces import AdvantageEstimator, AlgorithmContext, TrackerContext
from rlcore.plugins.loading import build
from rlcore.run.checkpoints import Checkpoint, CheckpointStore
from rlcore.run.folder import RunFolder
from rlcore.run.metrics import MetricsFile
from rlcore.run.resume import compare
from rlcore.run.rollouts import RolloutStore
from rlcore.runtime.local import choose_device, start_workers
from rlcore.runtime.workers import Workers

Notice = tuple[Literal["info", "warning"], str]


def launch(
    loaded: LoadedManifest,
    *,
    resume: str | bool = False,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Run the manifest to its end and return the run's folder.

    ``resume`` goes on from the last whole checkpoint, or from the one that is named. ``say`` is told what goes on while
    there are no trackers. Raises ``StopRequested`` when a signal ended the run, after a checkpoint was saved.
    """
    _look_at_folder(loaded, resume, overwrite)
    say("loading libraries and data …")
    prepared = _prepare(loaded.manifest)
    scorer, total_steps = prepared.scorer, prepared.total_steps
    with Stopping() as stopping, _open_folder(loaded.manifest, resume, overwrite) as folder:
        checkpoints = CheckpointStore(folder.checkpoints, loaded.manifest.run.keep_checkpoints)
        notices: list[Notice] = [("warning", f"{warning}") for warning in loaded.warnings]
        checkpoint = _checkpoint(folder, checkpoints, resume, loaded, notices) if resume else None
        if checkpoint and checkpoint.step >= total_steps and not checkpoint.state["metrics"]:
            say(f"nothing to do: {checkpoint.step} of {total_steps} steps are done")
            scorer.close()
            return folder.path
        if resume:
            _set_aside_after(folder, checkpoints, checkpoint, notices)
        folder.write_record(loaded.resolved(), _sources(loaded))
        tracking = _start_tracking(loaded, folder, checkpoint, total_steps)
        workers = None
        try:
            for level, text in [*notices, *prepared.reports()]:
                tracking.message(level, text)
            with tracking.phase("load"), stopping.at_once():
                workers = prepared.start_workers()
            loop = prepared.loop(workers, tracking, checkpoints, folder, stopping)
            if checkpoint:
                loop.restore(checkpoint)
            loop.run()
        except BaseException as error:
            with tracking.phase("stopped" if isinstance(error, StopRequested) else "failed"):
                raise
        finally:
            if workers is not None:
                workers.close()
            scorer.close()
            tracking.close()
    return loaded.manifest.run_folder


@dataclass(frozen=True)
class _Prepared:
    """What a run needs beside its folder and its models: all of it checked."""

    manifest: Manifest
    device: str
    tokenizer: Tokenizer
    prompts: PromptSet
    val: PromptSet | None
    sampler: PromptSampler
    plan: StepPlan
    scorer: Scorer
    estimator: AdvantageEstimator
    prepare_loss: UpdatePreparation | None

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return min(self.sampler.total_steps, self.manifest.run.max_steps or self.sampler.total_steps)

    def reports(self) -> list[Notice]:
        """What reading the data told."""
        return [("info", str(prompts.report)) for prompts in (self.prompts, self.val) if prompts is not None]

    def start_workers(self) -> Workers:
        """Load the models."""
        updates = self.total_steps * self.plan.updates_per_step
        return start_workers(self.manifest, self.plan, self.tokenizer, self.device, updates)

    def loop(
        self,
        workers: Workers,
        tracking: Tracking,
        checkpoints: CheckpointStore,
        folder: RunFolder,
        stopping: Stopping,
    ) -> Loop:
        """The loop at its first step."""
        kl = self.manifest.algorithm.kl
        source = LiveSource(workers.engines, self.scorer, self.tokenizer, self.manifest.run.seed)
        return Loop(
            manifest=self.manifest,
            plan=self.plan,
            workers=workers,
            collector=Collector(self.manifest, self.prompts, self.sampler, source, self.plan.greedy_baseline),
            estimator=self.estimator,
            kl_reward=KlReward(kl) if kl and kl.coef and kl.placement == "reward" else None,
            evaluation=Evaluation(self.manifest, self.val.prompts, source) if self.val else None,
            tracking=tracking,
            checkpoints=checkpoints,
            rollouts=RolloutStore(folder.rollouts, self.manifest.run.keep_rollouts),
            stopping=stopping,
            total_steps=self.total_steps,
            prepare_loss=self.prepare_loss,
        )


def _prepare(manifest: Manifest) -> _Prepared:
    from rlcore.torch.tokenizer import load_tokenizer

    device = choose_device(manifest.resources)
    tokenizer = load_tokenizer(manifest.model)
    prompts = load_prompt_set(manifest, "train", tokenizer)
    plan = StepPlan.of(manifest)
    return _Prepared(
        manifest=manifest,
        device=device,
        tokenizer=tokenizer,
        prompts=prompts,
        val=load_prompt_set(manifest, "val", tokenizer) if manifest.data.val else None,
        sampler=_sampler(manifest, len(prompts.prompts)),
        plan=plan,
        scorer=Scorer(manifest.rewards),
        estimator=build(manifest.algorithm.plugin("algorithm"), AlgorithmContext.of(manifest)),
        prepare_loss=update_preparation(plan.loss.policy),
    )


def _sampler(manifest: Manifest, prompts: int) -> PromptSampler:
    return PromptSampler(
        prompts,
        prompts_per_step=manifest.data.prompts_per_step,
        epochs=manifest.run.epochs,
        seed=manifest.run.seed,
        shuffle=manifest.data.shuffle,
        last_batch=manifest.data.last_batch,
    )


def _open_folder(manifest: Manifest, resume: str | bool, overwrite: bool) -> RunFolder:
    path = manifest.run_folder
    return RunFolder.open(path) if resume else RunFolder.create(path, overwrite=overwrite)


def _look_at_folder(loaded: LoadedManifest, resume: str | bool, overwrite: bool) -> None:
    """Refuse what the run's folder alone tells, before anything heavy is loaded; changes nothing of a run."""
    path = loaded.manifest.run_folder
    if not resume:
        RunFolder.require_free(path, overwrite=overwrite)
        return
    with RunFolder.open(path) as folder:
        _changes(folder, loaded)
        if isinstance(resume, str):
            CheckpointStore(folder.checkpoints, loaded.manifest.run.keep_checkpoints).find(resume)


def _changes(folder: RunFolder, loaded: LoadedManifest) -> list[Notice]:
    """What changed since the run was started; an error if the run can't go on so."""
    free, noted, refused = compare(folder.recorded_manifest(), loaded.resolved())
    if refused:
        raise CheckpointError(
            "this manifest can't go on with the run in {}:\n  {}".format(folder.path, "\n  ".join(refused))
        )
    return [*(("info", text) for text in free), *(("warning", text) for text in noted)]


def _checkpoint(
    folder: RunFolder, store: CheckpointStore, resume: str | bool, loaded: LoadedManifest, notices: list[Notice]
) -> Checkpoint | None:
    """The checkpoint to go on from; None if none was saved yet."""
    notices.extend(_changes(folder, loaded))
    store.warn = lambda text: notices.append(("warning", text))
    return store.named(resume) if isinstance(resume, str) else store.latest()


def _set_aside_after(
    folder: RunFolder, store: CheckpointStore, checkpoint: Checkpoint | None, notices: list[Notice]
) -> None:
    """Set aside what the run recorded past the checkpoint that it goes on from."""
    store.set_aside_after(checkpoint.step if checkpoint else 0)
    MetricsFile(folder.metrics_file).set_aside_after(checkpoint.step if checkpoint else -1)
    told = f"going on after step {checkpoint.step}" if checkpoint else None
    notices.append(("info", told or "no whole checkpoint yet: starting from the first step"))


def _start_tracking(
    loaded: LoadedManifest, folder: RunFolder, checkpoint: Checkpoint | None, total_steps: int
) -> Tracking:
    manifest = loaded.manifest
    context = TrackerContext(
        run_name=manifest.name, folder=folder.path, manifest=loaded.resolved(), state={}, total_steps=total_steps
    )
    refs = [tracker.plugin("tracker") for tracker in manifest.run.trackers]
    return Tracking.start(refs, context, checkpoint.state["trackers"] if checkpoint else {})


def _sources(loaded: LoadedManifest) -> dict[str, str]:
    """Where each value of the resolved manifest came from, by dotted key."""

    def walk(values: Mapping[str, Any], path: tuple[str | int, ...]) -> Iterator[tuple[str, str]]:
        for key, value in values.items():
            if isinstance(value, Mapping) and value:
                yield from walk(value, (*path, key))
            else:
                yield ".".join(map(str, (*path, key))), str(loaded.source_of((*path, key)))

    return dict(walk(loaded.resolved(), ()))
