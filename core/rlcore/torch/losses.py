"""Losses on one packed micro-batch of live tokens.

Axes: ``L`` live tokens (those with ``loss_mask`` 1) of the micro-batch, ``S`` its sequences. Masked tokens never get
here, so their gradient is exactly zero whatever their log-probs are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlcore.torch.kl import MAX_LOG_RATIO

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class LossInputs:
    """What a policy loss reads; all float32[L] unless said otherwise.

    ``logprobs`` carries gradient. ``old_logprobs`` are those of the policy that the ratio is taken against; on the
    first update of a rollout they are ``logprobs`` themselves, detached. ``segments`` int64[L] is the sequence of each
    token (0 … S−1), ``units`` int64[L] the unit of that sequence (0 … S−1; all sequences of a unit are here; None where
    each is one by itself), and ``extras`` holds the columns that the loss's config names, those of its ``prepare``
    included.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    weights: Tensor
    segments: Tensor
    sequences: int
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    units: Tensor | None = None

    @property
    def log_ratio(self) -> Tensor:
        """log(π / π_old) at each token, within ±20, so that its ``exp`` and that one's gradient are finite."""
        return (self.logprobs - self.old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

    def seq_mean(self, x: Tensor) -> Tensor:
        """The mean of a per-token value over the live tokens of its sequence, float32[L]."""
        zeros = torch.zeros(self.sequences, dtype=x.dtype, device=x.device)
        counts = zeros.index_add(0, self.segments, torch.ones_like(x))
        return (zeros.index_add(0, self.segments, x) / counts.clamp(min=1))[self.segments]


@dataclass(frozen=True)
class LossOutput:
    """A loss for each live token, float32[L], and values to report, float32[L] each: their means over live tokens."""

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


def clipped_surrogate(inputs: LossInputs, *, clip_low: float, clip_high: float, dual_clip: float | None) -> LossOutput:
    """PPO's clipped surrogate with a range of its own on each side and a bound for negative advantages.

    With ρ = π / π_old and A the advantage, the loss of a token is::

        ℓ = max(−A ρ, −A clip(ρ, 1 − clip_low, 1 + clip_high))
        ℓ = min(ℓ, −A dual_clip)    where A < 0

    Schulman et al. 2017, arXiv:1707.06347 eq. 7; two ranges: DAPO, arXiv:2503.14476 eq. 10; dual clip: Ye et al. 2020,
    arXiv:1912.09729 eq. 3. Metrics: ``clip_fraction``, tokens where the clipped term is the larger;
    ``clip_fraction_lower``, tokens at the dual bound; ``ratio``, ρ.
    """
    advantages = inputs.advantages
    ratio = inputs.log_ratio.exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(plain, clipped)
    metrics = {"clip_fraction": clipped > plain, "ratio": ratio}
    if dual_clip is not None:
        bound = -advantages * dual_clip
        at_bound = (advantages < 0) & (loss > bound)
        loss = torch.where(at_bound, bound, loss)
        metrics["clip_fraction_lower"] = at_bound
    return LossOutput(loss, {name: value.detach().to(loss.dtype) for name, value in metrics.items()})


class NegativeLogLikelihood:
    """−log π of each token: supervised fine-tuning. Advantages and old log-probs don't enter."""

    ignores_advantages = True

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """The loss at each token, without metrics."""
        return LossOutput(-inputs.logprobs)
