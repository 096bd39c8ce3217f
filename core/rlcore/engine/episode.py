"""Episodes: what turns a prompt into a sample, one request at a time.

An episode gives a request, sees its completion, and gives the next request or ends. A conversation with tools is
another class with the same three methods.
"""

from __future__ import annotations

from typing import Protocol

from rlcore.data.sample import Completion, Prompt, Request, Sample, Sampling, Segment
from rlcore.data.tokenizer import Tokenizer


class Episode(Protocol):
    """One sample in the making."""

    def first(self) -> Request:
        """The request that starts it."""

    def next(self, completion: Completion) -> Request | None:
        """The request that follows this completion, or None when the episode is over."""

    def sample(self) -> Sample:
        """What came of it; valid when ``next`` has returned None."""


class SingleTurn:
    """One question, one answer."""

    def __init__(self, request: Request, prompt: Prompt, index: int, tokenizer: Tokenizer) -> None:
        self._request = request
        self._prompt = prompt
        self._index = index
        self._tokenizer = tokenizer
        self._completion: Completion | None = None

    def first(self) -> Request:
        """The prompt, as it is."""
        return self._request

    def next(self, completion: Completion) -> Request | None:
        """Nothing: the first answer is the last."""
        self._completion = completion
        return None

    def sample(self) -> Sample:
        """The prompt and its answer."""
        done = self._completion
        assert done is not None, "the episode is not over"
        text = self._tokenizer.decode(done.tokens)
        return Sample(
            prompt=self._prompt,
            index=self._index,
            segments=(
                Segment("prompt", self._prompt.tokens),
                Segment("generated", done.tokens, done.logprobs, done.weight_version),
            ),
            response=before_stop(text, self._request.sampling),
            finish=done.finish,
        )


def before_stop(text: str, sampling: Sampling) -> str:
    """The text up to the first stop string in it."""
    ends = [at for at in (text.find(stop) for stop in sampling.stop) if at >= 0]
    return text[: min(ends)] if ends else text
