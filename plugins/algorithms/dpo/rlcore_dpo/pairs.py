"""Pairs of a better and a worse sample. Axes: ``N`` samples, ``P`` pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rlcore.data.groups import deviations, total_rewards
from rlcore.errors import BatchError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rlcore.data.batch import Batch


def best_and_worst(batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the sample with the most and with the least reward of each set; two of int64[P].

    A set is a ``unit`` where the batch has units of several rows (pairs that the data brings), else a ``group``.
    Samples without a live token are left out, and so are sets without spread. Of a group's equals the one with the
    lowest ``unit`` is taken, so that the order of rows doesn't matter.

    Raises ``BatchError`` for a unit over several groups, and for rewards that are no finite numbers.
    """
    rewards, units, groups = total_rewards(batch), batch["unit"], batch["group"]
    given = len(np.unique(units)) < len(units)
    if np.unique(np.stack([units, groups]), axis=1).shape[1] > len(np.unique(units)):
        raise BatchError("the rows of a unit must be of one group, so that one update trains on all of them")
    rows = np.flatnonzero(batch.sum_rows(batch["loss_mask"] != 0) > 0)
    sets = (units if given else groups)[rows]
    spread = deviations(rewards[rows], sets)[1] > 0
    rows, sets = rows[spread], sets[spread]
    by_reward = np.lexsort((units[rows], rewards[rows], sets))
    by_reward_falling = np.lexsort((units[rows], -rewards[rows], sets))
    _, first = np.unique(sets[by_reward], return_index=True)
    return rows[by_reward_falling[first]], rows[by_reward[first]]
