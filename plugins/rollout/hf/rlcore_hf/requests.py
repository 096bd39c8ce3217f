"""What a request may ask, and when its text ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlcore.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from rlcore.data.sample import Request
    from rlcore.data.tokenizer import Tokenizer

_COLDEST = 1e-6
"""Below it, logits over temperature leave float32."""

_SLACK_TOKENS = 8
"""More tokens than a stop string can have: the window's first may decode differently for want of those before."""


def check_request(request: Request, max_tokens: int) -> None:
    """Refuse what can't be generated. Raises ``DataError``."""
    ask = request.sampling

    def refuse(why: str) -> None:
        raise DataError(f"request {request.id!r}: {why}")

    if not len(request.tokens):
        refuse("the prompt is empty; a model needs at least one token to go on from")
    if ask.max_tokens < 1:
        refuse(f"max_tokens is {ask.max_tokens}; there must be room for at least one token")
    if not 0 <= ask.min_tokens <= ask.max_tokens:
        refuse(f"min_tokens is {ask.min_tokens}; it must be within 0 and max_tokens ({ask.max_tokens})")
    if ask.temperature != 0 and not _COLDEST <= ask.temperature < float("inf"):
        refuse(f"temperature is {ask.temperature}; it must be 0 (greedy) or a number from {_COLDEST} on")
    if not 0 < ask.top_p <= 1:
        refuse(f"top_p is {ask.top_p}; it must be above 0 and at most 1")
    if ask.top_k < 0:
        refuse(f"top_k is {ask.top_k}; it must be 0 (all tokens) or more")
    if "" in ask.stop:
        refuse("a stop string is empty; it would end every response")
    if (total := len(request.tokens) + ask.max_tokens) > max_tokens:
        refuse(
            f"prompt ({len(request.tokens)} tokens) and max_tokens ({ask.max_tokens}) are {total} together; "
            f"the engine was made for {max_tokens}"
        )


def ends_with_stop(tokens: NDArray[np.int32], stop: Sequence[str], tokenizer: Tokenizer) -> bool:
    """Whether the newest token completes one of the stop strings, be it within the token or over several."""
    # A token that shows has at least one byte, so a stop string has no more tokens than bytes.
    window = tokens[-(max(len(s.encode()) for s in stop) + _SLACK_TOKENS) :]
    text = tokenizer.decode(window)
    if not any(s in text for s in stop):
        return False
    # One that was complete before, while min_tokens held, does not count. Half a character decodes to U+FFFD.
    before = len(tokenizer.decode(window[:-1]).rstrip("�"))
    return any(s in text[max(0, before - len(s) + 1) :] for s in stop)
