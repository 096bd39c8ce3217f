"""From a manifest to a finished run. Everything that can be wrong is looked at before a model is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlcore.data.prompts import load_prompt_set
from rlcore.data.sampler import PromptSampler
from rlcore.engine.collect import Collector
from rlcore.engine.evaluate import Evaluation
from rlcore.engine.kl_reward import KlReward
from rlcore.engine.loop import Loop
from rlcore.engine.prepare import StepPlan, update_preparation
from rlcore.engine.scoring import Scorer
from rlcore.engine.source import LiveSource
from rlcore.engine.stopping import Stopping
from rlcore.engine.tracking import Tracking
from rlcore.errors import CheckpointError
from rlcore.manifest.load import LoadedManifest
from rlcore.manifest.schema import Manifest
from rlcore.plugins.interfaces import AlgorithmContext, TrackerContext
from rlcore.plugins.loading import build
from rlcore.run.checkpoints import Checkpoint, CheckpointStore
from rlcore.run.folder import RunFolder
from rlcore.run.metrics import MetricsFile
from rlcore.run.resume import compare
from rlcore.run.rollouts import RolloutStore
from rlcore.runtime.local import choose_device, start_workers


def launch(loaded: LoadedManifest, *, resume: str | bool = False, overwrite: bool = False) -> Path:
    """Run the manifest to its end and return the run's folder.

    ``resume`` goes on from the last whole checkpoint, or from the one that is named. Raises ``StopRequested`` when a
    signal ended the run, after a checkpoint was saved.
    """
    from rlcore.torch.tokenizer import load_tokenizer

    manifest = loaded.manifest
    device = choose_device(manifest.resources)
    tokenizer = load_tokenizer(manifest.model)
    prompts = load_prompt_set(manifest, "train", tokenizer)
    val = load_prompt_set(manifest, "val", tokenizer) if manifest.data.val else None
    sampler = _sampler(manifest, len(prompts.prompts))
    plan, kl = StepPlan.of(manifest), manifest.algorithm.kl
    total_steps = min(sampler.total_steps, manifest.run.max_steps or sampler.total_steps)
    scorer = Scorer(manifest.rewards)
    estimator = build(manifest.algorithm.plugin("algorithm"), AlgorithmContext.of(manifest))
    prepare_loss = update_preparation(plan.loss.policy)
    with Stopping() as stopping, _open_folder(manifest, resume, overwrite) as folder:
        checkpoints = CheckpointStore(folder.checkpoints, manifest.run.keep_checkpoints)
        notices = [f"{warning}" for warning in loaded.warnings]
        checkpoint = _checkpoint(folder, checkpoints, resume, loaded, notices) if resume else None
        folder.write_record(loaded.resolved(), _sources(loaded))
        tracking = _start_tracking(loaded, folder, checkpoint, total_steps)
        workers = None
        try:
            for text in [*notices, str(prompts.report), *([str(val.report)] if val else [])]:
                tracking.message("info", text)
            with tracking.phase("load"), stopping.at_once():
                workers = start_workers(manifest, plan, tokenizer, device, total_steps * plan.updates_per_step)
            source = LiveSource(workers.engines, scorer, tokenizer, manifest.run.seed)
            loop = Loop(
                manifest=manifest,
                plan=plan,
                workers=workers,
                collector=Collector(manifest, prompts, sampler, source, plan.greedy_baseline),
                estimator=estimator,
                kl_reward=KlReward(kl) if kl and kl.coef and kl.placement == "reward" else None,
                evaluation=Evaluation(manifest, val.prompts, source) if val else None,
                tracking=tracking,
                checkpoints=checkpoints,
                rollouts=RolloutStore(folder.rollouts, manifest.run.keep_rollouts),
                stopping=stopping,
                total_steps=total_steps,
                prepare_loss=prepare_loss,
            )
            if checkpoint:
                loop.restore(checkpoint)
            loop.run()
        finally:
            if workers is not None:
                workers.close()
            scorer.close()
            tracking.close()
    return manifest.run_folder


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


def _checkpoint(
    folder: RunFolder, store: CheckpointStore, resume: str | bool, loaded: LoadedManifest, notices: list[str]
) -> Checkpoint | None:
    """The checkpoint to go on from; what the run recorded past it is set aside. None if none was saved yet."""
    changed, refused = compare(folder.recorded_manifest(), loaded.resolved())
    if refused:
        raise CheckpointError(
            "this manifest can't go on with the run in {}:\n  {}".format(folder.path, "\n  ".join(refused))
        )
    notices.extend(changed)
    store.warn = notices.append
    checkpoint = store.named(resume) if isinstance(resume, str) else store.latest()
    step = checkpoint.step if checkpoint else 0
    store.set_aside_after(step)
    MetricsFile(folder.metrics_file).set_aside_after(step if checkpoint else -1)
    notices.append(
        f"going on after step {step}" if checkpoint else "no whole checkpoint yet: starting from the first step"
    )
    return checkpoint


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
