"""Where groups of samples come from: generated now, or (later) recorded before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from rlcore.data.ids import sample_seed
from rlcore.data.sample import Group, Prompt, Request, Sample, Sampling
from rlcore.data.tokenizer import Tokenizer
from rlcore.engine.engine_group import EngineGroup
from rlcore.engine.episode import Episode, SingleTurn
from rlcore.engine.scoring import Scorer

Progress = Callable[[int, int], None]
"""Told how many samples are done, of how many."""

_POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """A group to be sampled. ``visit`` tells apart the times that a prompt comes round, so that each draws anew.
    ``greedy_baseline`` asks for one more sample at temperature 0.
    """

    id: int
    prompt: Prompt
    samples: int
    sampling: Sampling
    visit: int
    want_logprobs: bool = False
    greedy_baseline: bool = False


class GroupSource(Protocol):
    """Gives the scored groups that were asked for, in the order asked."""

    def collect(self, wanted: Sequence[GroupRequest], progress: Progress) -> list[Group]:
        """One group for each request."""


class LiveSource:
    """Samples with the engines and scores each sample as soon as it is finished, while others are still generated."""

    def __init__(self, engines: EngineGroup, scorer: Scorer, tokenizer: Tokenizer, seed: int) -> None:
        self._engines = engines
        self._scorer = scorer
        self._tokenizer = tokenizer
        self._seed = seed

    def collect(self, wanted: Sequence[GroupRequest], progress: Progress) -> list[Group]:
        """Generate and score; engines must be awake. Whatever goes wrong, nothing stays in flight."""
        members = {group.id: self._episodes(group) for group in wanted}
        episodes = {episode.first().id: episode for group in members.values() for episode in group}
        finished: dict[str, Sample] = {}
        try:
            self._engines.submit([episode.first() for episode in episodes.values()])
            while len(finished) < len(episodes):
                over = self._advance(episodes)
                finished |= zip(over, self._scorer.score([episodes[i].sample() for i in over]), strict=True)
                progress(len(finished), len(episodes))
        finally:
            self._engines.abort_all()
        groups = []
        for group in wanted:
            samples = [finished[episode.first().id] for episode in members[group.id]]
            baseline = samples.pop() if group.greedy_baseline else None
            groups.append(Group(group.id, group.prompt, samples, baseline))
        return groups

    def _advance(self, episodes: dict[str, Episode]) -> list[str]:
        """Let the engines work; returns the ids of episodes that ended, and submits what the others ask next."""
        over, follow = [], []
        for completion in self._engines.poll(_POLL_SECONDS):
            request = episodes[completion.request_id].next(completion)
            if request is None:
                over.append(completion.request_id)
            else:
                follow.append(request)
        self._engines.submit(follow)
        return over

    def _episodes(self, group: GroupRequest) -> list[Episode]:
        """The group's samples in the making, and the greedy one last if it is asked for."""
        sampling = [group.sampling] * group.samples
        if group.greedy_baseline:
            sampling.append(replace(group.sampling, temperature=0.0))
        return [self._episode(group, index, how) for index, how in enumerate(sampling)]

    def _episode(self, group: GroupRequest, index: int, sampling: Sampling) -> Episode:
        request = Request(
            id=f"{group.id}/{index}",
            group=str(group.id),
            tokens=group.prompt.tokens,
            sampling=sampling,
            seed=sample_seed(self._seed, group.prompt.id, group.visit, index, 0),
            want_logprobs=group.want_logprobs,
        )
        return SingleTurn(request, group.prompt, index, self._tokenizer)
