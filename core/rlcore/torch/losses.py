"""Losses on one packed micro-batch of live tokens.

Axes: ``L`` live tokens (those with ``loss_mask`` 1) of the micro-batch, ``S`` its sequences. Masked tokens never get
here, so their gradient is exactly zero whatever their log-probs are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class LossInputs:
    """What a policy loss reads; all float32[L] unless said otherwise.

    ``logprobs`` carries gradient. ``old_logprobs`` are those of the policy that the ratio is taken against; on the
    first update of a rollout they are ``logprobs`` themselves, detached. ``segments`` int64[L] is the sequence of each
    token (0 … S−1) and ``extras`` holds further columns that the loss's config named or its ``prepare`` added.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    weights: Tensor
    segments: Tensor
    sequences: int
    extras: Mapping[str, Tensor] = field(default_factory=dict)

    def seq_mean(self, x: Tensor) -> Tensor:
        """The mean of a per-token value over the live tokens of its sequence, float32[L]."""
        counts = torch.zeros(self.sequences, device=x.device).index_add_(0, self.segments, torch.ones_like(x))
        sums = torch.zeros(self.sequences, dtype=x.dtype, device=x.device).index_add(0, self.segments, x)
        return (sums / counts.clamp(min=1))[self.segments]


@dataclass(frozen=True)
class LossOutput:
    """A loss for each live token, float32[L], and values to report, float32[L] each: their means over live tokens."""

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
