"""Which tokens of an update have a high covariance between log-prob and advantage, and would lower entropy most.

Cui et al. 2025, "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", arXiv:2505.22617 §4.

Axes: ``T`` tokens of a whole update. Chosen once for the update, so that the choice doesn't depend on micro-batches or
ranks. No random state enters: where the paper draws, and where covariances are equal, a number that follows from the
tokens of the sequence decides.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
from rlcore.errors import BatchError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rlcore.data.batch import Batch

SELECTED = "cov_selected"
"""The token column that carries the choice to the loss: 1 at chosen tokens, else 0."""

_SHOWN_ROWS = 5


def covariances(batch: Batch) -> NDArray[np.float64]:
    """``(log π_t − mean log π)(A_t − mean A)`` float64[T], means over the update's live tokens; NaN at all others.

    π is the policy before the step's first update (``old_logprobs``). Raises ``BatchError`` naming the rows that have a
    live token whose log-prob or advantage is no finite number.
    """
    live = batch["loss_mask"] != 0
    product = np.full(len(live), np.nan)
    centred = []
    for name in ("old_logprobs", "advantages"):
        values = batch[name][live].astype(np.float64)
        if not np.isfinite(values).all():
            rows = np.unique(batch.rows[live][~np.isfinite(values)])
            more = f" and {len(rows) - _SHOWN_ROWS} more" if len(rows) > _SHOWN_ROWS else ""
            shown = ", ".join(map(str, rows[:_SHOWN_ROWS]))
            raise BatchError(f"{name} must be finite numbers; rows {shown}{more} of the update have others")
        centred.append(values - values.mean() if len(values) else values)
    product[live] = centred[0] * centred[1]
    return product


def in_band(batch: Batch, *, fraction: float, low: float, high: float) -> NDArray[np.bool_]:
    """Tokens drawn from those with low < covariance < high, bool[T]: ``fraction`` of all live ones, or all there are.

    Clip-Cov's choice: uniform, without replacement.
    """
    covariance = covariances(batch)
    candidates = np.flatnonzero((covariance > low) & (covariance < high))
    order = np.argsort(_draws(batch)[candidates], kind="stable")
    return _mask(batch, candidates[order][: _count(batch, fraction)])


def highest(batch: Batch, *, fraction: float) -> NDArray[np.bool_]:
    """The ``fraction`` of live tokens with the highest covariance, bool[T]; drawn where covariances are equal.

    KL-Cov's choice.
    """
    covariance = covariances(batch)
    candidates = np.flatnonzero(batch["loss_mask"] != 0)
    order = np.lexsort((_draws(batch)[candidates], -covariance[candidates]))
    return _mask(batch, candidates[order][: _count(batch, fraction)])


def _count(batch: Batch, fraction: float) -> int:
    """Tokens to choose: at least one, so that a small update doesn't switch the loss off in silence."""
    live = np.count_nonzero(batch["loss_mask"])
    return max(1, int(fraction * live + 1e-9))  # 0.0002 · 35,000 is 7, whatever floats make of it


def _draws(batch: Batch) -> NDArray[np.float64]:
    """A uniform number for each token that follows from the tokens of its sequence and its place alone; float64[T]."""
    rows = (batch.tokens[start:end] for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True))
    draws = [np.random.default_rng(zlib.crc32(row.tobytes())).random(len(row)) for row in rows]
    return np.concatenate(draws) if draws else np.zeros(0)


def _mask(batch: Batch, chosen: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    mask = np.zeros(len(batch.tokens), bool)
    mask[chosen] = True
    return mask
