"""What is asked of a model and what comes back: prompts, requests, completions, samples, groups.

Token ids are kept exactly as they were sampled. Text is decoded from them once, for rewards and people, and is never
tokenised again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
Finish = Literal["stop", "length", "abort"]
"""Why a generation ended: by an EOS id or stop string, at the token limit, or because it was called off."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of the data.

    ``tokens`` (int32[n]) is the prompt as the model reads it, chat template applied. ``location`` says where the row
    came from ("train.parquet row 17"), for error messages.
    """

    id: str
    text: str
    tokens: Tokens
    ground_truth: Any = None
    source: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    location: str = ""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. ``temperature`` 0 is greedy; ``top_p`` 1 and ``top_k`` 0 keep the whole vocabulary."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One generation to run. Requests of one ``group`` share their prompt, and an engine may prefill it once."""

    id: str
    group: str
    tokens: Tokens
    sampling: Sampling
    seed: int
    want_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine generated for a request.

    ``tokens`` int32[n] includes the EOS id that ended it. ``logprobs`` float32[n], if asked for, are over the whole
    vocabulary at the request's temperature, as a trainer's are: before min_tokens, top_p and top_k leave tokens out.
    ``weight_version`` is that of the weights in use.
    """

    request_id: str
    tokens: Tokens
    finish: Finish
    weight_version: int
    logprobs: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a conversation. Only ``generated`` pieces carry loss; ``observed`` is what a tool or user said."""

    kind: Literal["prompt", "generated", "observed"]
    tokens: Tokens
    logprobs: NDArray[np.float32] | None = None
    weight_version: int = -1


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer to one prompt: what a reward function is given.

    ``response`` is the generated text, without special tokens and stop strings. ``rewards`` holds the score of each
    reward by its name in the manifest, ``reward`` their weighted sum; both are empty until scored. ``answers`` holds
    the answer that a reward found in the response, for those that tell it: what ``maj@k`` votes on.
    """

    prompt: Prompt
    index: int
    segments: tuple[Segment, ...]
    response: str
    finish: Finish
    reward: float = float("nan")
    rewards: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)

    @property
    def ground_truth(self) -> Any:
        """The right answer, as the data has it."""
        return self.prompt.ground_truth

    @property
    def source(self) -> str:
        """Name of the data set that the prompt is from."""
        return self.prompt.source

    @property
    def extra(self) -> Mapping[str, Any]:
        """Further columns of the prompt's row."""
        return self.prompt.extra

    @property
    def truncated(self) -> bool:
        """Whether the token limit cut it off; an answer that ends exactly at the limit is not truncated."""
        return self.finish == "length"

    @property
    def response_tokens(self) -> int:
        """Number of generated tokens."""
        return sum(len(s.tokens) for s in self.segments if s.kind == "generated")

    def scored(
        self,
        reward: float,
        rewards: Mapping[str, float],
        metrics: Mapping[str, float],
        answers: Mapping[str, str] | None = None,
    ) -> Sample:
        """The same sample with its scores."""
        return replace(self, reward=reward, rewards=dict(rewards), metrics=dict(metrics), answers=dict(answers or {}))


@dataclass(frozen=True, slots=True)
class Group:
    """All samples of one prompt in one step; what group estimators compare. ``id`` is unique within the run.

    ``baseline`` is one more sample, drawn greedily, where the estimator reads its reward; it doesn't train.
    """

    id: int
    prompt: Prompt
    samples: Sequence[Sample]
    baseline: Sample | None = None
