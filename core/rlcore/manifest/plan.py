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
    step = StepPlan.of(manifest)
    rows = _count_rows(loaded, "train")
    if rows is not None and rows < (manifest.data.prompts_per_step if manifest.data.last_batch == "drop" else 1):
        message = (
            f"holds {rows:,} prompts, fewer than the {manifest.data.prompts_per_step:,} of data.prompts_per_step: "
            "lower it, or set data.last_batch to short"
        )
        refuse([Problem(loaded.source_of(("data", "train")), ("data", "train"), message)])
    return [
        ("steps", _steps(manifest, rows)),
        ("updates", _updates(manifest, step)),
        ("samples", _samples(manifest)),
        ("evaluation", _evaluation(manifest, _count_rows(loaded, "val"))),
        ("models", _models(step)),
        *_memory(manifest, step),
        *(("skipped", sentence) for sentence in _skipped(manifest, step)),
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


def _samples(manifest: Manifest) -> str:
    data = manifest.data
    samples = data.prompts_per_step * manifest.rollout.samples_per_prompt
    tokens = samples * (data.max_prompt_tokens + data.max_response_tokens)
    return f"{samples:,} a step, of at most {tokens:,} tokens"


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
    folder = manifest.model.path
    shape = read_shape(Path(folder)) if looks_like_path(folder) else None
    if shape is None:
        why = (
            "an architecture without a formula here" if looks_like_path(folder) else "the model is not on this machine"
        )
        return [("memory", f"unknown: {why}")]
    parts = training_bytes(shape, manifest.model.dtype, manifest.trainer, reference=step.reference)
    detail = ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items())
    total = f"about {sum(parts.values()) / GIB:.2f} GiB a device while training ({detail}), and what generation takes"
    return [("parameters", f"{shape.parameters:,}"), ("memory", total)]


def _models(step: StepPlan) -> str:
    others = [name for name, held in (("reference", step.reference), ("critic", step.critic)) if held]
    return ", ".join(["policy", *others[:-1]]) + "".join(f" and {name}" for name in others[-1:])


def _skipped(manifest: Manifest, step: StepPlan) -> list[str]:
    sentences = []
    if not step.reference:
        sentences.append("reference model: no KL term")
    kl = manifest.algorithm.kl
    if not step.old_logprobs and not (step.reference and kl and kl.placement == "reward"):
        sentences.append("log-probs before the update: one update per rollout, so the ratio is 1 by construction")
    if not step.rollout_logprobs:
        compared = "nothing reads them after they were compared once with the trainer's"
        sentences.append(f"log-probs from the engine: {compared}")
    if not step.critic:
        sentences.append("critic: the estimator reads no values")
    return sentences
