"""Several rollout engines used as one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from rlcore.data.sample import Completion, Request
from rlcore.plugins.interfaces import RolloutEngine, WeightReceiver


class EngineGroup:
    """Spreads whole groups of requests over engines, so that each prompt is prefilled once; remembers who has what."""

    def __init__(self, engines: Sequence[RolloutEngine]) -> None:
        self._engines = list(engines)
        self._tokens = [0] * len(engines)  # most that each engine may still have to generate
        self._holder: dict[str, tuple[int, int]] = {}  # request id -> (engine, tokens counted for it)
        self._group_home: dict[str, int] = {}

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests, each group at the engine with the least to do."""
        shares: list[list[Request]] = [[] for _ in self._engines]
        for request in requests:
            home = self._group_home.setdefault(request.group, self._tokens.index(min(self._tokens)))
            cost = len(request.tokens) + request.sampling.max_tokens
            self._tokens[home] += cost
            self._holder[request.id] = (home, cost)
            shares[home].append(request)
        for engine, share in zip(self._engines, shares, strict=True):
            if share:
                engine.submit(share)

    def poll(self, timeout_seconds: float) -> list[Completion]:
        """What has finished at any engine; waits up to the timeout, shared among the engines that are busy."""
        busy = sorted({engine for engine, _ in self._holder.values()})
        done = [c for i in busy for c in self._engines[i].poll(timeout_seconds / len(busy))]
        self._forget(c.request_id for c in done)
        return done

    def abort(self, ids: Collection[str]) -> None:
        """Drop these requests wherever they are."""
        for engine in self._engines:
            engine.abort(ids)
        self._forget(ids)

    @property
    def in_flight(self) -> int:
        """Requests that have not come back."""
        return len(self._holder)

    def abort_all(self) -> None:
        """Drop everything in flight."""
        self.abort(list(self._holder))

    def receive_weights(self, receivers: Sequence[WeightReceiver], version: int) -> None:
        """Give each engine the trainer's weights through its own receiver."""
        for engine, receiver in zip(self._engines, receivers, strict=True):
            engine.receive_weights(receiver, version)

    def sleep(self) -> None:
        """Free what generation holds, at every engine."""
        self._each(lambda engine: engine.sleep())

    def wake(self) -> None:
        """Get every engine ready to generate."""
        self._each(lambda engine: engine.wake())

    def close(self) -> None:
        """Release every engine."""
        self._each(lambda engine: engine.close())

    def __len__(self) -> int:
        return len(self._engines)

    def _each(self, act: Callable[[RolloutEngine], Any]) -> None:
        for engine in self._engines:
            act(engine)

    def _forget(self, ids: Any) -> None:
        for request_id in ids:
            home, cost = self._holder.pop(request_id, (0, 0))
            self._tokens[home] -= cost
        if not self._holder:
            self._group_home.clear()
