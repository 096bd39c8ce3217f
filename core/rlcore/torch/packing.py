"""Micro-batches without padding: sequences one after the other on a single token axis.

Axes: ``T`` tokens of the micro-batch, ``S`` its sequences, ``L`` its live tokens (those whose log-prob is asked for).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rlcore.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

    from rlcore.data.batch import Batch


@dataclass(frozen=True)
class Packing:
    """Where the sequences of a micro-batch lie, for attention functions.

    ``offsets`` int64[S + 1] is on the host, ``cu_seqlens`` int32[S + 1] the same on the device; ``position_ids``
    int64[1, T] starts again at 0 in every sequence.
    """

    offsets: NDArray[np.int64]
    cu_seqlens: Tensor
    position_ids: Tensor
    max_length: int

    @classmethod
    def of(cls, offsets: NDArray[np.int64], device: torch.device | str) -> Packing:
        """The packing of sequences that start and end at these offsets (int64[S + 1])."""
        lengths = np.diff(offsets)
        positions = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        return cls(
            offsets,
            torch.from_numpy(offsets.astype(np.int32)).to(device),
            torch.from_numpy(positions)[None].to(device),
            int(lengths.max(initial=0)),
        )

    @cached_property
    def buckets(self) -> tuple[list[Tensor], Tensor]:
        """For attention without a varlen kernel: sequences of similar length, padded on the right by repetition.

        Returns int64[B, length] token indices for each bucket, and int64[T]: where each token is found when the
        buckets are flattened and joined.
        """
        device = self.cu_seqlens.device
        lengths = np.diff(self.offsets)
        inverse = np.empty(self.offsets[-1], np.int64)
        groups: list[list[int]] = []
        for row in np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]:
            longest = lengths[groups[-1][0]] if groups else 0
            # At most a quarter of a bucket is padding, and short sequences are not split into many buckets.
            if not groups or longest - lengths[row] > max(16, longest // 4):
                groups.append([])
            groups[-1].append(int(row))
        buckets, start = [], 0
        for group in groups:
            steps = np.arange(lengths[group[0]])
            starts, sizes = self.offsets[group][:, None], lengths[group][:, None]
            index = starts + np.minimum(steps, sizes - 1)
            real = steps < sizes
            inverse[index[real]] = start + np.flatnonzero(real)
            buckets.append(torch.from_numpy(index).to(device))
            start += index.size
        return buckets, torch.from_numpy(inverse).to(device)


@dataclass(frozen=True)
class MicroBatch:
    """One packed forward pass.

    ``tokens`` int64[T]. For each live token: ``predict`` int64[L] is the position whose hidden state predicts it,
    ``targets`` int64[L] its id, ``segments`` int64[L] its sequence, ``units`` int64[L] that one's unit (counted from 0
    here), ``columns`` float32[L] what the loss reads, and ``live`` int64[L] (host) its index among all tokens of the
    batch that the micro-batch was cut from.
    """

    tokens: Tensor
    packing: Packing
    predict: Tensor
    targets: Tensor
    segments: Tensor
    units: Tensor
    sequences: int
    columns: Mapping[str, Tensor]
    live: NDArray[np.int64]


def live_tokens(batch: Batch) -> NDArray[np.bool_]:
    """bool[T]: the tokens whose log-prob is wanted: ``loss_mask``, or all but the first of each sequence.

    Raises BatchError where the mask holds a first token: nothing predicts it, so it can't be trained on.
    """
    first = np.zeros(len(batch.tokens), bool)
    first[batch.offsets[:-1][batch.lengths > 0]] = True
    if "loss_mask" not in batch:
        return ~first
    live = np.asarray(batch["loss_mask"]) > 0
    wrong = np.flatnonzero(live & first)
    if len(wrong):
        row = int(batch.rows[wrong[0]])
        raise BatchError(f"loss_mask is 1 at the first token of sequence {row}, which nothing predicts; set it to 0")
    return live


def pack(batch: Batch, rows: NDArray[np.int64], columns: Collection[str], device: torch.device | str) -> MicroBatch:
    """The sequences at ``rows`` as one micro-batch on ``device``, with these token columns at its live tokens."""
    extra = batch.with_tokens(_live=live_tokens(batch), _index=np.arange(len(batch.tokens)))
    part = extra.select(rows)
    at = np.flatnonzero(part["_live"])
    segments = part.rows[at]
    _, units = np.unique(part["unit"] if "unit" in part else np.arange(len(part)), return_inverse=True)

    def move(array: NDArray[np.generic], dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.array(array)).to(device, dtype)

    return MicroBatch(
        tokens=move(part.tokens, torch.int64),
        packing=Packing.of(part.offsets, device),
        predict=move(at - 1, torch.int64),
        targets=move(part.tokens[at], torch.int64),
        segments=move(segments, torch.int64),
        units=move(units[segments], torch.int64),
        sequences=len(part),
        columns={name: move(part[name][at], torch.float32) for name in columns},
        live=part["_index"][at],
    )
