"""Collecting groups: order, seeds, and what is left behind when something fails."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest
from rlcore.data.sample import Completion, Prompt, Request, Sample, Sampling
from rlcore.engine.engine_group import EngineGroup
from rlcore.engine.episode import before_stop
from rlcore.engine.source import GroupRequest, LiveSource
from rlcore.errors import RewardError
from rlcore.plugins.interfaces import RolloutEngine


class Backwards(RolloutEngine):
    """Finishes the newest request first, one a poll, with its seed as the only token."""

    def __init__(self) -> None:
        self.held: list[Request] = []
        self.seeds: list[int] = []

    def submit(self, requests: Sequence[Request]) -> None:
        self.held.extend(requests)
        self.seeds.extend(r.seed for r in requests)

    def poll(self, timeout_seconds: float) -> list[Completion]:
        request = self.held.pop()
        return [Completion(request.id, np.array([request.seed % 1000], np.int32), "stop", 3)]

    def abort(self, ids: Collection[str]) -> None:
        self.held = [r for r in self.held if r.id not in ids]

    def receive_weights(self, receiver: Any, version: int) -> None: ...
    def sleep(self) -> None: ...
    def wake(self, *, weights: bool = True, cache: bool = True) -> None: ...


class Numbers:
    """A tokenizer that reads ids as numbers."""

    eos_ids = frozenset[int]()

    def decode(self, tokens: Any) -> str:
        return " ".join(map(str, tokens))


class Rewards:
    """A scorer that gives every sample 1, or fails at the third."""

    def __init__(self, fail: bool = False) -> None:
        self.fail, self.scored = fail, 0

    def score(self, samples: Sequence[Sample]) -> list[Sample]:
        self.scored += len(samples)
        if self.fail and self.scored >= 3:
            raise RewardError("no")
        return [sample.scored(1.0, {}, {}) for sample in samples]


def wanted(visit: int = 0) -> list[GroupRequest]:
    prompts = [Prompt(name, name, np.array([1, 2], np.int32)) for name in "ab"]
    return [GroupRequest(40 + i, prompt, 2, Sampling(max_tokens=4), visit) for i, prompt in enumerate(prompts)]


def source(engine: Backwards, scorer: Any) -> LiveSource:
    return LiveSource(EngineGroup([engine]), scorer, Numbers(), seed=5)  # type: ignore[arg-type]


def test_groups_come_in_the_order_asked_whatever_finishes_first() -> None:
    engine = Backwards()
    progress: list[tuple[int, int]] = []
    groups = source(engine, Rewards()).collect(wanted(), lambda done, total: progress.append((done, total)))
    assert [group.id for group in groups] == [40, 41]
    assert [[s.index for s in group.samples] for group in groups] == [[0, 1], [0, 1]]
    expected = [seed % 1000 for seed in engine.seeds]
    assert [int(s.segments[1].tokens[0]) for group in groups for s in group.samples] == expected
    assert groups[0].samples[0].segments[1].weight_version == 3
    assert progress == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_every_sample_and_every_visit_draws_anew() -> None:
    engine = Backwards()
    live = source(engine, Rewards())
    for visit in (0, 1):
        live.collect(wanted(visit), lambda done, total: None)
    assert len(set(engine.seeds)) == 8


def test_nothing_stays_in_flight_after_an_error() -> None:
    engine = Backwards()
    with pytest.raises(RewardError):
        source(engine, Rewards(fail=True)).collect(wanted(), lambda done, total: None)
    assert engine.held == []


def test_text_ends_before_the_first_stop_string() -> None:
    stops = Sampling(max_tokens=4, stop=("Question:", "\n\n"))
    assert before_stop("#### 18\n\nQuestion: how", stops) == "#### 18"
    assert before_stop("#### 18", stops) == "#### 18"
