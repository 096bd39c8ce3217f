"""How the rows of a batch are spread: over ranks, and on a rank over micro-batches. Sequences are never cut."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any

import numpy as np

from rlcore.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from rlcore.data.batch import Batch

# Attention costs as much as all matrix products at a length of about 12 times the hidden size: per token, causal,
# 2·hidden·length against 24·hidden² FLOPs. This is a hidden size of 2,048; others need no exactness here.
_ATTENTION_EQUALS_LINEAR_TOKENS = 12 * 2048


def token_cost(lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """What sequences of these lengths cost a transformer, in tokens of a short sequence: linear plus quadratic."""
    return lengths * (1.0 + lengths / _ATTENTION_EQUALS_LINEAR_TOKENS)


def shard(
    batch: Batch, ranks: int, cost: Callable[[NDArray[np.int64]], NDArray[np.float64]] = token_cost
) -> list[NDArray[np.int64]]:
    """Row indices for each rank, int64[n_r] rising; every row is on exactly one rank, rows of one ``unit`` on the same.

    Longest first onto the least loaded rank: no rank costs more than 4/3 of the best split's. A rank gets no rows where
    there are fewer units than ranks. The result depends on nothing but the arguments.
    """
    if ranks < 1:
        raise BatchError(f"a batch can't be sharded over {ranks} ranks")
    names = batch["unit"] if "unit" in batch else np.arange(len(batch))
    _, unit_of_row = np.unique(names, return_inverse=True)
    costs = np.bincount(unit_of_row, weights=cost(batch.lengths))
    loads = [(0.0, rank) for rank in range(ranks)]
    rank_of_unit = np.zeros(len(costs), np.int64)
    for unit in np.argsort(-costs, kind="stable"):
        load, rank = loads[0]
        rank_of_unit[unit] = rank
        heapq.heapreplace(loads, (load + float(costs[unit]), rank))
    rank_of_row = rank_of_unit[unit_of_row]
    return [np.flatnonzero(rank_of_row == rank) for rank in range(ranks)]


def micro_batches(
    lengths: NDArray[np.integer[Any]] | Sequence[int],
    tokens_per_micro_batch: int,
    units: NDArray[np.integer[Any]] | None = None,
) -> list[NDArray[np.int64]]:
    """Row indices for each micro-batch, int64[n_m] rising, none above the budget; every row is in exactly one.

    Best fit, longest first; the first micro-batch holds the longest sequence, so that memory runs out at once or never.
    Rows of one of the ``units`` int[n], if they are given, stay together and count as one.

    Raises:
        BatchError: a sequence, or a unit of several, is longer than the budget.
    """
    sizes = np.asarray(lengths, np.int64)
    if len(sizes) and (longest := int(sizes.max())) > tokens_per_micro_batch:
        raise BatchError(
            f"row {int(sizes.argmax())} has {longest} tokens, more than trainer.tokens_per_micro_batch "
            f"({tokens_per_micro_batch}); a sequence is never cut: raise it to the longest prompt plus response"
        )
    _, item_of_row = np.unique(np.arange(len(sizes)) if units is None else units, return_inverse=True)
    totals = np.bincount(item_of_row, sizes).astype(np.int64)
    if len(totals) and (largest := int(totals.max())) > tokens_per_micro_batch:
        together = ", ".join(map(str, np.flatnonzero(item_of_row == totals.argmax())))
        raise BatchError(
            f"rows {together} train together and have {largest} tokens, more than trainer.tokens_per_micro_batch "
            f"({tokens_per_micro_batch}): raise it to the longest prompt plus response for each of them"
        )
    packs: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (free tokens, pack), sorted
    for item in np.argsort(-totals, kind="stable").tolist():
        size = int(totals[item])
        at = bisect_left(room, (size, -1))
        if at == len(room):
            free, pack = tokens_per_micro_batch, len(packs)
            packs.append([])
        else:
            free, pack = room.pop(at)
        packs[pack].append(item)
        insort(room, (free - size, pack))
    members = np.split(np.argsort(item_of_row, kind="stable"), np.cumsum(np.bincount(item_of_row)))
    return [np.sort(np.concatenate([members[item] for item in pack])) for pack in packs]
