"""What a step trains on: the groups of its prompts, and others in place of those that teach nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlcore.data.prompts import PromptSet
from rlcore.data.sample import Group, Sampling
from rlcore.data.sampler import PromptSampler
from rlcore.engine.source import GroupRequest, GroupSource, Progress
from rlcore.engine.stats import has_spread
from rlcore.errors import NoSpreadError
from rlcore.manifest.schema import DynamicSamplingSection, Manifest


@dataclass
class Collector:
    """Asks the source for the groups of each step, in waves where groups without spread are replaced.

    Every wave is as large as what is missing, and groups are judged in the order of their prompts, so what a step
    trains on depends on the seed alone.
    """

    manifest: Manifest
    prompts: PromptSet
    sampler: PromptSampler
    source: GroupSource
    greedy_baseline: bool
    groups_asked: int = 0

    def collect(self, *, want_logprobs: bool, progress: Progress) -> tuple[list[Group], list[Group], dict[str, float]]:
        """The groups to train on, all that were sampled, and metrics. Raises NoSpreadError, if the manifest says so."""
        dynamic = self.manifest.algorithm.dynamic_sampling
        wanted = self.manifest.data.prompts_per_step
        kept: list[Group] = []
        sampled: list[Group] = []
        epoch = rounds = 0
        while len(kept) < wanted and not self.sampler.done:
            if rounds and (dynamic is None or rounds == dynamic.max_generation_rounds):
                break
            step = self.sampler.take(wanted - len(kept))
            wave = self.source.collect(self._requests(step.epoch, step.indices, want_logprobs), progress)
            sampled += wave
            kept += wave if dynamic is None else [group for group in wave if self._teaches(group, dynamic)]
            epoch, rounds = step.epoch, rounds + 1
        metrics = {"run/epoch": float(epoch)}
        if dynamic is not None:
            metrics |= {
                "group/generation_rounds": float(rounds),
                "group/dropped_fraction": 1 - len(kept) / len(sampled),
            }
            self._check(len(kept), len(sampled), rounds, dynamic)
        return kept, sampled, metrics

    def _requests(self, epoch: int, indices: Any, want_logprobs: bool) -> list[GroupRequest]:
        first = self.groups_asked
        self.groups_asked += len(indices)
        return [
            GroupRequest(
                id=first + i,
                prompt=self.prompts.prompts[index],
                samples=self.manifest.rollout.samples_per_prompt,
                sampling=training_sampling(self.manifest),
                visit=epoch,
                want_logprobs=want_logprobs,
                greedy_baseline=self.greedy_baseline,
            )
            for i, index in enumerate(indices)
        ]

    def _teaches(self, group: Group, dynamic: DynamicSamplingSection) -> bool:
        name = dynamic.filter_on or next(iter(self.manifest.rewards))
        return has_spread([sample.rewards[name] for sample in group.samples])

    def _check(self, kept: int, sampled: int, rounds: int, dynamic: DynamicSamplingSection) -> None:
        wanted = self.manifest.data.prompts_per_step
        # The last prompts of the run are its ordinary end, whatever became of them.
        if kept == wanted or (kept and (dynamic.when_short == "train" or self.sampler.done)):
            return
        reward = dynamic.filter_on or next(iter(self.manifest.rewards))
        why = "no prompts are left" if self.sampler.done else f"{rounds} waves, algorithm.dynamic_sampling's limit"
        advice = "" if self.sampler.done else "; algorithm.dynamic_sampling.when_short: train goes on with fewer"
        raise NoSpreadError(
            f"only {kept} of {wanted} prompts have answers that differ in the reward {reward!r}, out of {sampled} "
            f"sampled for this step ({why}). What was learnt so far is kept as a checkpoint. Easier or harder prompts, "
            f"more samples per prompt or a higher temperature bring spread{advice if kept else ''}"
        )

    def state(self) -> dict[str, Any]:
        """Where it is, for a checkpoint."""
        return {"groups_asked": self.groups_asked, "sampler": self.sampler.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a saved place."""
        self.groups_asked = state["groups_asked"]
        self.sampler.restore(state["sampler"])


def training_sampling(manifest: Manifest) -> Sampling:
    """How samples to train on are drawn."""
    data, rollout = manifest.data, manifest.rollout
    return Sampling(
        max_tokens=data.max_response_tokens,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        min_tokens=rollout.min_tokens,
        stop=tuple(rollout.stop),
        ignore_eos=rollout.ignore_eos,
    )
