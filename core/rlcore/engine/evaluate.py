"""Evaluation: the validation prompts answered as the ``eval`` section says, and scored by the same rewards."""

from __future__ import annotations

from collections.abc import Sequence

from rlcore.data.sample import Prompt, Sampling
from rlcore.engine.accuracy import evaluation_metrics
from rlcore.engine.source import GroupRequest, GroupSource, Progress
from rlcore.manifest.schema import Manifest

_VISIT = -1  # a visit that training never has, so that answers are drawn apart from training's, and alike each time


class Evaluation:
    """Answers every validation prompt; seeds are the same each time, so that only the weights make a difference."""

    def __init__(self, manifest: Manifest, prompts: Sequence[Prompt], source: GroupSource) -> None:
        settings = manifest.eval
        self._k = settings.k
        self._source = source
        sampling = Sampling(
            max_tokens=settings.max_response_tokens or manifest.data.max_response_tokens,
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            stop=tuple(manifest.rollout.stop),
        )
        self._wanted = [
            GroupRequest(i, prompt, settings.samples_per_prompt, sampling, _VISIT)
            for i, prompt in enumerate(prompts[: settings.max_prompts])
        ]

    def run(self, progress: Progress) -> dict[str, float]:
        """Metrics under ``eval/``; engines must be awake."""
        return evaluation_metrics(self._source.collect(self._wanted, progress), self._k)
