"""The soft overlong penalty: Yu et al. 2025, arXiv:2503.14476 (DAPO), eq. 13."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def overlong_penalty(
    response_tokens: NDArray[np.integer], *, max_tokens: int, buffer_tokens: int, factor: float
) -> NDArray[np.float64]:
    """What is added to each sample's reward: 0 down to ``−factor``; float64[N].

    With ℓ the sample's generated tokens, L the longest response and B the buffer before it::

        0                          where ℓ ≤ L − B
        −factor · (ℓ − (L − B)) / B    where L − B < ℓ ≤ L
        −factor                    where ℓ > L, as a conversation of several turns may be
    """
    into_buffer = response_tokens - float(max_tokens - buffer_tokens)
    return -factor * np.clip(into_buffer / buffer_tokens, 0.0, 1.0)
