"""Samples made from text, for tests of rewards and of what uses their scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlcore.data.sample import Finish, Prompt, Sample, Segment


def make_sample(
    response: str,
    ground_truth: Any = None,
    *,
    prompt: str = "What is 1 + 1?",
    source: str = "",
    extra: Mapping[str, Any] | None = None,
    finish: Finish = "stop",
    index: int = 0,
    location: str = "test.jsonl row 0",
) -> Sample:
    """An answer as a reward is given it, not scored yet. Each byte of text is a token, as in the tiny model."""
    row = Prompt(
        id=f"{source}/{prompt}",
        text=prompt,
        tokens=_tokens(prompt),
        ground_truth=ground_truth,
        source=source,
        messages=({"role": "user", "content": prompt},),
        extra=extra or {},
        location=location,
    )
    segments = (Segment("prompt", row.tokens), Segment("generated", _tokens(response)))
    return Sample(row, index, segments, response, finish)


def _tokens(text: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8).astype(np.int32)
