"""Requests over several engines, which are faked here; the contract tests run the real ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from rlcore.data.sample import Completion, Request, Sampling
from rlcore.engine.engine_group import EngineGroup
from rlcore.plugins.interfaces import RolloutEngine


class Engine(RolloutEngine):
    """Remembers what it is told, and finishes what the test says."""

    def __init__(self) -> None:
        self.held: list[Request] = []
        self.told: list[Any] = []

    def submit(self, requests: Sequence[Request]) -> None:
        self.held.extend(requests)

    def poll(self, timeout_seconds: float) -> list[Completion]:
        self.told.append(("poll", timeout_seconds))
        done, self.held = self.held[:1], self.held[1:]
        return [Completion(r.id, np.array([1], np.int32), "stop", 0) for r in done]

    def abort(self, ids: Collection[str]) -> None:
        self.held = [r for r in self.held if r.id not in ids]

    def receive_weights(self, receiver: Any, version: int) -> None:
        self.told.append((receiver, version))

    def sleep(self) -> None:
        self.told.append("sleep")

    def wake(self, *, weights: bool = True, cache: bool = True) -> None:
        self.told.append("wake")


def request(group: str, index: int, tokens: int = 10) -> Request:
    return Request(f"{group}/{index}", group, np.zeros(tokens, np.int32), Sampling(max_tokens=5), seed=0)


def test_groups_stay_together_and_loads_are_balanced() -> None:
    engines = [Engine(), Engine()]
    group = EngineGroup(engines)
    group.submit([request("long", i, tokens=100) for i in range(2)])
    group.submit([request(name, i) for name in ("a", "b", "c") for i in range(2)])
    held = [{r.group for r in engine.held} for engine in engines]
    # 210 tokens at the first; a, b and c are 30 each, so all three go to the second.
    assert held == [{"long"}, {"a", "b", "c"}]


def test_a_later_request_of_a_group_goes_where_the_group_is() -> None:
    engines = [Engine(), Engine()]
    group = EngineGroup(engines)
    group.submit([request("a", 0, tokens=100), request("b", 0)])
    group.submit([request("a", 1)])
    assert [r.id for r in engines[0].held] == ["a/0", "a/1"]


def test_poll_asks_only_the_busy_and_shares_the_wait() -> None:
    engines = [Engine(), Engine(), Engine()]
    group = EngineGroup(engines)
    group.submit([request("a", 0), request("b", 0)])
    assert group.in_flight == 2
    assert sorted(c.request_id for c in group.poll(1.0)) == ["a/0", "b/0"]
    assert [engine.told for engine in engines] == [[("poll", 0.5)], [("poll", 0.5)], []]
    assert group.in_flight == 0
    assert group.poll(1.0) == []


def test_abort_forgets_and_frees_the_load() -> None:
    engines = [Engine(), Engine()]
    group = EngineGroup(engines)
    group.submit([request("a", 0, tokens=100), request("b", 0)])
    group.abort(["a/0"])
    assert engines[0].held == []
    group.submit([request("c", 0)])
    assert [r.id for r in engines[0].held] == ["c/0"]
    group.abort_all()
    assert group.in_flight == 0
    assert engines[1].held == []


def test_each_engine_gets_its_own_receiver() -> None:
    engines = [Engine(), Engine()]
    EngineGroup(engines).receive_weights(["first", "second"], 7)  # type: ignore[list-item]
    assert [engine.told for engine in engines] == [[("first", 7)], [("second", 7)]]
