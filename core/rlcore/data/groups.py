"""What advantage estimators share: a sample's reward, and how it stands among the samples of its prompt.

Axes: ``N`` samples, ``T`` tokens. ``groups`` int[N] says which samples share a prompt: any order, any sizes. Everything
is float64; what is said of a group is repeated for each of its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlcore.errors import BatchError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlcore.data.batch import Batch

FLAT = 1e-6
"""Values have no spread if their standard deviation is at most this fraction of their root mean square. Rewards are
float32 sums (resolution 1e-7), whose residue must not be divided by a standard deviation of the same residue."""

_SHOWN_ROWS = 5


def finite(values: NDArray[Any], what: str = "rewards") -> NDArray[np.float64]:
    """A sample column as float64[N]. Raises ``BatchError`` naming the rows that hold no finite number."""
    values = values.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        shown = ", ".join(f"{row} ({values[row]})" for row in bad[:_SHOWN_ROWS])
        more = f" and {len(bad) - _SHOWN_ROWS} more" if len(bad) > _SHOWN_ROWS else ""
        raise BatchError(f"{what} must be finite numbers; rows {shown}{more} of the batch are not")
    return values


def token_rewards(batch: Batch) -> NDArray[np.float64]:
    """``token_rewards`` at live tokens, 0 elsewhere and where there are none; float64[T].

    Raises ``BatchError`` naming the rows in which they are no finite numbers.
    """
    if "token_rewards" not in batch:
        return np.zeros(len(batch.tokens))
    column = np.where(batch["loss_mask"] != 0, batch["token_rewards"], 0).astype(np.float64)
    finite(batch.sum_rows(column), "sums of token_rewards")
    return column


def total_rewards(batch: Batch) -> NDArray[np.float64]:
    """``reward`` plus the sum of ``token_rewards`` over the live tokens of each sample; float64[N].

    Raises ``BatchError`` naming the rows in which either is no finite number.
    """
    return finite(batch["reward"]) + batch.sum_rows(token_rewards(batch))


def group_sums(values: NDArray[Any], groups: NDArray[np.integer]) -> NDArray[np.float64]:
    """Sum over the group of each row; float64[N]."""
    _, index = np.unique(groups, return_inverse=True)
    totals: NDArray[Any] = np.bincount(index, values)
    return totals[index]


def group_sizes(groups: NDArray[np.integer]) -> NDArray[np.float64]:
    """Samples in the group of each row; float64[N]."""
    return group_sums(np.ones(len(groups)), groups)


def deviations(
    rewards: NDArray[np.floating], groups: NDArray[np.integer]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """``r_i − μ_g`` and ``σ_g``, with Bessel's correction (n − 1); two of float64[N].

    Both are exactly 0 in a group without spread (``FLAT``), as one of a single sample.
    """
    rewards, sizes = rewards.astype(np.float64), group_sizes(groups)
    centred = rewards - group_sums(rewards, groups) / sizes
    std = np.sqrt(group_sums(centred**2, groups) / np.maximum(sizes - 1, 1))
    spread = std > FLAT * np.sqrt(group_sums(rewards**2, groups) / sizes)
    return np.where(spread, centred, 0.0), np.where(spread, std, 0.0)


def with_advantages(batch: Batch, advantages: NDArray[np.floating]) -> Batch:
    """The batch with these advantages of its tokens [T], as float32, and 0 where ``loss_mask`` is 0."""
    return batch.with_tokens(advantages=np.where(batch["loss_mask"] != 0, advantages, 0).astype(np.float32))
