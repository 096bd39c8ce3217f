"""What a manifest will do, told before it is done: steps, sizes, models, memory, and what is skipped and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlcore.engine.prepare import StepPlan
from rlcore.manifest.layers import looks_like_path
from rlcore.manifest.memory import read_shape, training_bytes
from rlcore.manifest.nodes import Problem, refuse

if TYPE_CHECKING:
    from rlcore.manifest.load import LoadedManifest
    from rlcore.manifest.schema import Manifest

GIB = 2**30


def plan_rows(loaded: LoadedManifest) -> list[tuple[str, str]]:
    """The plan as pairs of what and how much. Files are not read, but for the number of rows in parquet metadata.

    Raises ``ManifestError`` for a parquet file that is none, and for fewer rows than one step needs.
    """
    manifest = loaded.manifest
    rows = _count_rows(loaded, "train")
    if rows is not None and rows < (manifest.data.prompts_per_step if manifest.data.last_batch == "drop" else 1):
        message = (
            f"holds {rows:,} prompts, fewer than the {manifest.data.prompts_per_step:,} of data.prompts_per_step: "
            "lower it, or set data.last_batch to short"
        )
        refuse([Problem(loaded.source_of(("data", "train")), ("data", "train"), message)])
    unloaded = [loaded.unloaded[path] for path in (("algorithm",), ("algorithm", "loss")) if path in loaded.unloaded]
    common = [("steps", _steps(manifest, rows))]
    evaluation = ("evaluation", _evaluation(manifest, _count_rows(loaded, "val")))
    if unloaded:  # what a step computes is what they read
        return [*common, evaluation, ("the rest", f"is not known unless {' and '.join(unloaded)} may be imported")]
    step = StepPlan.of(manifest)
    return [
        *common,
        ("updates", _updates(manifest, step)),
        ("samples", _samples(manifest, step)),
        *_sampling(manifest),
        *_algorithm(manifest),
        evaluation,
        ("models", _models(step)),
        *_critic(manifest),
        *_memory(manifest, step),
        *(("skipped", sentence) for sentence in _skipped(step)),
    ]


def _count_rows(loaded: LoadedManifest, split: str) -> int | None:
    """Rows of a split's files by their metadata; None where one is no parquet file, or there are none."""
    from pyarrow import ArrowException, parquet

    given = getattr(loaded.manifest.data, split)
    files = [given] if isinstance(given, str) else given or []
    if not files or any(Path(file).suffix != ".parquet" for file in files):
        return None
    count, problems = 0, []
    for i, file in enumerate(files):
        path = ("data", split) if isinstance(given, str) else ("data", split, i)
        try:
            count += parquet.read_metadata(file).num_rows
        except (OSError, ArrowException) as error:
            reason = str(error).splitlines()[0] if str(error) else "unreadable"
            problems.append(Problem(loaded.source_of(path), path, f"{file} is no parquet file: {reason}"))
    refuse(problems)
    return count


def _steps(manifest: Manifest, rows: int | None) -> str:
    data, run = manifest.data, manifest.run
    limit = f", stopped at {run.max_steps:,} by run.max_steps" if run.max_steps else ""
    epochs = f"{run.epochs} epoch{'s' if run.epochs > 1 else ''}"
    if rows is None:
        return f"{epochs} of as many as the data has (rows of JSONL are counted by --data){limit}"
    per_epoch = rows // data.prompts_per_step if data.last_batch == "drop" else -(-rows // data.prompts_per_step)
    total = per_epoch * run.epochs
    limit = limit if run.max_steps and run.max_steps < total else ""
    dropped = "; overlong prompts drop out" if data.overlong_prompts == "drop" else ""
    return f"{per_epoch:,} of {data.prompts_per_step:,} prompts × {epochs} = {total:,}{limit} ({rows:,} rows{dropped})"


def _updates(manifest: Manifest, step: StepPlan) -> str:
    data, trainer = manifest.data, manifest.trainer
    size = trainer.prompts_per_update or data.prompts_per_step
    whole, rest = divmod(data.prompts_per_step, size)
    sizes = f"{whole} of {size:,} prompts" + (f" and one of {rest:,}" if rest else "")
    again = f", {trainer.epochs_per_batch} times over" if trainer.epochs_per_batch > 1 else ""
    return f"{step.updates_per_step} a step: {sizes}{again}"


def _samples(manifest: Manifest, step: StepPlan) -> str:
    data = manifest.data
    samples = data.prompts_per_step * (manifest.rollout.samples_per_prompt + step.greedy_baseline)
    tokens = samples * (data.max_prompt_tokens + data.max_response_tokens)
    greedy = ", of which one of each prompt is greedy and a baseline only" if step.greedy_baseline else ""
    return f"{samples:,} a step, of at most {tokens:,} tokens{greedy}"


def _sampling(manifest: Manifest) -> list[tuple[str, str]]:
    dynamic = manifest.algorithm.dynamic_sampling
    if dynamic is None:
        return []
    name = dynamic.filter_on or next(iter(manifest.rewards))
    short = "the run stops" if dynamic.when_short == "stop" else "it trains on what there is"
    waves = f"in up to {dynamic.max_generation_rounds} waves a step; after the last, {short}"
    return [("dynamic", f"prompts whose answers are equal in reward {name} are replaced, {waves}")]


def _algorithm(manifest: Manifest) -> list[tuple[str, str]]:
    """Terms between policy, reference and engine, where there are any."""
    rows = []
    kl, correction = manifest.algorithm.kl, manifest.algorithm.rollout_correction
    if kl is not None and kl.coef:
        goal = f"adapted to a KL of {kl.target:g} a token" if kl.target is not None else "fixed"
        rows.append(("KL", f"{kl.estimator} in the {kl.placement}, times {kl.coef:g} ({goal})"))
    if correction is not None:
        what = {"token": "tokens", "sequence": "samples"}[correction.level]
        if correction.mode == "truncate":
            how = f"importance weights of {what} are cut to {correction.cap:g}"
        else:
            how = f"{what} don't train whose importance weight is outside {correction.floor:g} to {correction.cap:g}"
        rows.append(("correction", how))
    return rows


def _critic(manifest: Manifest) -> list[tuple[str, str]]:
    critic = manifest.critic
    if critic is None:
        return []
    clip = f"an update moves values by at most {critic.value_clip:g}" if critic.value_clip else "values move freely"
    warmup = f", and the policy is first trained after {critic.warmup_steps} steps" if critic.warmup_steps else ""
    return [("critic", f"from {critic.path or manifest.model.path}, lr {critic.lr:g}; {clip}{warmup}")]


def _evaluation(manifest: Manifest, rows: int | None) -> str:
    run, evaluation = manifest.run, manifest.eval
    times = [*(["before the first step"] if run.eval_first else [])]
    times += [f"after every {run.eval_every} steps and the last"] if run.eval_every else []
    if not times:
        return "none"
    count = rows if evaluation.max_prompts is None else min(evaluation.max_prompts, rows or evaluation.max_prompts)
    prompts = "all" if count is None else f"{count:,}"
    decoding = "greedy" if evaluation.temperature == 0 else f"{evaluation.samples_per_prompt} samples each"
    return f"{' and '.join(times)}, on {prompts} prompts, {decoding}"


def _memory(manifest: Manifest, step: StepPlan) -> list[tuple[str, str]]:
    shapes, section = [], manifest.critic
    folders = [manifest.model.path, *([section.path or manifest.model.path] if section else [])]
    for name, folder in zip(("the model", "the critic"), folders, strict=False):
        shape = read_shape(Path(folder)) if looks_like_path(folder) else None
        if shape is None:
            why = f"{name} is not on this machine"
            if looks_like_path(folder):
                why = f"{name} is of an architecture without a formula here"
            return [("memory", f"unknown: {why}")]
        shapes.append(shape)
    critic = (shapes[1], section) if section else None
    parts = training_bytes(shapes[0], manifest.model.dtype, manifest.trainer, reference=step.reference, critic=critic)
    detail = ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items())
    total = f"about {sum(parts.values()) / GIB:.2f} GiB a device while training ({detail}), and what generation takes"
    return [("parameters", f"{shapes[0].parameters:,}"), ("memory", total)]


def _models(step: StepPlan) -> str:
    others = [name for name, held in (("reference", step.reference), ("critic", step.critic)) if held]
    return ", ".join(["policy", *others[:-1]]) + "".join(f" and {name}" for name in others[-1:])


def _skipped(step: StepPlan) -> list[str]:
    sentences = []
    if not step.reference:
        sentences.append("reference model: there is no KL term, and nothing reads its log-probs")
    if not step.old_logprobs:
        sentences.append("log-probs before the update: one update per rollout, so the ratio is 1 by construction")
    if not step.rollout_logprobs:
        compared = "nothing reads them after they were compared once with the trainer's"
        sentences.append(f"log-probs from the engine: {compared}")
    if not step.critic:
        sentences.append("critic: the estimator reads no values")
    return sentences
