"""Where groups of samples come from: generated now, or (later) recorded before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    """A group to be sampled. ``visit`` tells apart the times that a prompt comes round, so that each draws anew."""

    id: int
    prompt: Prompt
    samples: int
    sampling: Sampling
    visit: int
    want_logprobs: bool = False


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
        episodes = {e.first().id: e for group in wanted for e in self._episodes(group)}
        finished: dict[tuple[int, int], Sample] = {}
        owner = {f"{group.id}/{i}": group for group in wanted for i in range(group.samples)}
        try:
            self._engines.submit([episode.first() for episode in episodes.values()])
            while len(finished) < len(episodes):
                over = self._advance(episodes)
                for request_id, sample in zip(
                    over, self._scorer.score([episodes[i].sample() for i in over]), strict=True
                ):
                    finished[owner[request_id].id, sample.index] = sample
                progress(len(finished), len(episodes))
        finally:
            self._engines.abort_all()
        return [
            Group(group.id, group.prompt, [finished[group.id, i] for i in range(group.samples)]) for group in wanted
        ]

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
        prompt = group.prompt
        return [
            SingleTurn(
                Request(
                    id=f"{group.id}/{index}",
                    group=str(group.id),
                    tokens=prompt.tokens,
                    sampling=group.sampling,
                    seed=sample_seed(self._seed, prompt.id, group.visit, index, 0),
                    want_logprobs=group.want_logprobs,
                ),
                prompt,
                index,
                self._tokenizer,
            )
            for index in range(group.samples)
        ]
