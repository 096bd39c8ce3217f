"""Evaluation of a model outside a run."""

from __future__ import annotations

from pathlib import Path

from rlcore.data.prompts import load_prompt_set
from rlcore.engine.engine_group import EngineGroup
from rlcore.engine.evaluate import Evaluation
from rlcore.engine.scoring import Scorer
from rlcore.engine.source import LiveSource
from rlcore.errors import ManifestError
from rlcore.manifest.schema import Manifest
from rlcore.runtime.local import choose_device
from rlcore.runtime.standalone import model_section, standalone_engine


def evaluate_model(manifest: Manifest, folder: Path | None) -> dict[str, float]:
    """Metrics under ``eval/`` of the model in a folder, or of the manifest's own, on the validation prompts."""
    from rlcore.torch.tokenizer import load_tokenizer

    if not manifest.data.val:
        raise ManifestError("data.val: the manifest names no validation prompts to evaluate on")
    device = choose_device(manifest.resources)
    model = model_section(folder) if folder else manifest.model
    tokenizer = load_tokenizer(model)
    prompts = load_prompt_set(manifest, "val", tokenizer).prompts
    scorer = Scorer(manifest.rewards)
    with standalone_engine(
        model,
        tokenizer,
        manifest.rollout.plugin("rollout"),
        max_tokens=manifest.longest_tokens,
        seed=manifest.run.seed,
        device=device,
    ) as engine:
        source = LiveSource(EngineGroup([engine]), scorer, tokenizer, manifest.run.seed)
        metrics = Evaluation(manifest, prompts, source).run(lambda done, total: None)
    scorer.close()
    return metrics
