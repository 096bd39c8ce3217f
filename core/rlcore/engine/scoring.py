"""Samples in, scored samples out. How and where rewards run is hidden behind ``Scorer``."""

from __future__ import annotations

import asyncio
import inspect
import math
import reprlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

from rlcore.data.sample import Sample
from rlcore.errors import RewardError
from rlcore.manifest.schema import RewardSection
from rlcore.plugins.interfaces import RewardContext
from rlcore.plugins.loading import build

_SHOWN_CHARS = 200  # of each end of a response in an error
_ALLOWED = "it must return a finite number, or a mapping with 'score', other finite numbers and perhaps a text 'answer'"


class Scorer:
    """Scores samples by every reward of a manifest, in this process.

    Sync rewards run one after the other. What async rewards wait for, they all wait for together, on one event loop
    that lives as long as the scorer.
    """

    def __init__(self, rewards: Mapping[str, RewardSection], load: Callable[..., Any] = build) -> None:
        """Build each reward once, by ``load(ref, context)``. Raises PluginError."""
        self._rewards = [
            _Reward(name, section.use, section.weight, load(section.plugin("reward"), RewardContext(name)))
            for name, section in rewards.items()
        ]
        self._runner: asyncio.Runner | None = None

    def score(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples with ``reward``, ``rewards``, ``metrics`` ("REWARD/KEY") and ``answers``, in the same order.

        Raises RewardError, which shows the sample, if a reward raises or returns something that is no score.
        """
        if not samples:
            return []
        with ExitStack() as started:
            returned = [reward.call(samples, started) for reward in self._rewards]
            self._await(returned, samples)
        columns = [
            [reward.judge(value, sample) for value, sample in zip(values, samples, strict=True)]
            for reward, values in zip(self._rewards, returned, strict=True)
        ]
        return [self._scored(sample, verdicts) for sample, *verdicts in zip(samples, *columns, strict=True)]

    def close(self) -> None:
        """End the event loop of async rewards."""
        if self._runner:
            self._runner.close()
            self._runner = None

    def _await(self, returned: list[list[Any]], samples: Sequence[Sample]) -> None:
        """Put results in place of the awaitables in ``returned``, [rewards][samples]."""
        if not any(inspect.isawaitable(value) for values in returned for value in values):
            return
        self._runner = self._runner or asyncio.Runner()
        try:
            self._runner.run(self._wait(returned, samples))
            return
        except ExceptionGroup as group:
            first = group.exceptions[0]
        raise first  # out here, so that it keeps its own cause and not the group

    async def _wait(self, returned: list[list[Any]], samples: Sequence[Sample]) -> None:
        async def settle(reward: _Reward, values: list[Any], i: int) -> None:
            values[i] = await reward.finish(values[i], samples[i])

        async with asyncio.TaskGroup() as group:  # calls off all others when one raises
            for reward, values in zip(self._rewards, returned, strict=True):
                for i, value in enumerate(values):
                    if inspect.isawaitable(value):
                        group.create_task(settle(reward, values, i))

    def _scored(self, sample: Sample, verdicts: Sequence[_Verdict]) -> Sample:
        by_name = {reward.name: verdict for reward, verdict in zip(self._rewards, verdicts, strict=True)}
        return sample.scored(
            sum(reward.weight * by_name[reward.name].score for reward in self._rewards),
            {name: verdict.score for name, verdict in by_name.items()},
            {f"{name}/{key}": value for name, verdict in by_name.items() for key, value in verdict.metrics.items()},
            {name: verdict.answer for name, verdict in by_name.items() if verdict.answer is not None},
        )


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What one reward says of one sample."""

    score: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class _Reward:
    """A reward that is built. ``plugin`` is what the manifest names in ``use``."""

    name: str
    plugin: str
    weight: float
    function: Any

    def call(self, samples: Sequence[Sample], started: ExitStack) -> list[Any]:
        """What it returns for each sample; coroutines are closed with ``started`` if nobody awaited them by then."""
        if hasattr(self.function, "score_batch"):
            return self._call_batch(samples)
        returned = []
        for sample in samples:
            try:
                value = self.function(sample)
            except (Exception, SystemExit) as exc:  # a plugin's code
                raise self._raised(exc, sample) from exc
            if inspect.iscoroutine(value):
                started.callback(value.close)
            returned.append(value)
        return returned

    def _call_batch(self, samples: Sequence[Sample]) -> list[Any]:
        try:
            returned = self.function.score_batch(samples)
        except (Exception, SystemExit) as exc:  # a plugin's code
            raise self._raised(exc, samples[0]) from exc
        if not isinstance(returned, Sequence | np.ndarray) or isinstance(returned, str | bytes):
            raise self._error(f"returned {reprlib.repr(returned)} from score_batch; it must return a list", samples[0])
        if len(returned) != len(samples):
            raise self._error(
                f"returned {len(returned)} values from score_batch for {len(samples)} samples", samples[0]
            )
        return list(returned)

    async def finish(self, awaitable: Awaitable[Any], sample: Sample) -> Any:
        """What an async reward comes to."""
        try:
            return await awaitable
        except (Exception, SystemExit) as exc:  # a plugin's code
            raise self._raised(exc, sample) from exc

    def judge(self, returned: Any, sample: Sample) -> _Verdict:
        """The result for one sample, checked."""
        if not isinstance(returned, Mapping):
            return _Verdict(self._number(returned, returned, sample))
        if "score" not in returned:
            keys = ", ".join(map(repr, returned)) or "none"
            raise self._error(f"returned a mapping without 'score', with the keys {keys}; {_ALLOWED}", sample)
        numbers = dict(returned)
        answer = numbers.pop("answer", None)
        if not isinstance(answer, str | None):
            raise self._error(f"returned {reprlib.repr(answer)} as 'answer', which is no text", sample)
        score = self._number(numbers.pop("score"), returned, sample)
        return _Verdict(score, {key: self._number(value, returned, sample) for key, value in numbers.items()}, answer)

    def _number(self, value: Any, returned: Any, sample: Sample) -> float:
        if isinstance(value, Real | np.bool_):
            try:
                number = float(value)
            except OverflowError:  # an int that no float holds
                number = math.inf
            if math.isfinite(number):
                return number
        raise self._error(f"returned {reprlib.repr(returned)}; {_ALLOWED}", sample)

    def _raised(self, exc: BaseException, sample: Sample) -> RewardError:
        return self._error(f"raised {type(exc).__name__}: {exc}", sample)

    def _error(self, what: str, sample: Sample) -> RewardError:
        prompt = sample.prompt
        where = f"{prompt.location or f'prompt {prompt.id}'}, sample {sample.index}"
        return RewardError(
            f"reward {self.name!r} ({self.plugin}) {what}\n"
            f"  at: {where}\n"
            f"  ground truth: {reprlib.repr(sample.ground_truth)}\n"
            f"  response: {_shorten(sample.response)!r}"
        )


def _shorten(text: str) -> str:
    """Its beginning and its end, where an answer stands."""
    cut = len(text) - 2 * _SHOWN_CHARS
    return text if cut <= 0 else f"{text[:_SHOWN_CHARS]} […{cut} characters…] {text[-_SHOWN_CHARS:]}"
