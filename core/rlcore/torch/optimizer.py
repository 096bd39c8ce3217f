"""AdamW and its learning rate, from a ``trainer`` section."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from rlcore.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from rlcore.manifest.schema import TrainerSection


def build_optimizer(params: Iterable[nn.Parameter], section: TrainerSection) -> torch.optim.AdamW:
    """AdamW over the parameters that require gradients; plain tensors or DTensors, on any device.

    Weight decay is on all of them, biases and norms too, as in the trainers that recipes are published for; recipes
    with a decay other than 0 keep their meaning. Raises ``ModelError`` where nothing requires gradients.
    """
    trained = [p for p in params if p.requires_grad]
    if not trained:
        raise ModelError("no parameter of the model requires gradients, so there is nothing to train")
    return torch.optim.AdamW(
        trained, lr=section.lr, betas=section.betas, eps=section.eps, weight_decay=section.weight_decay, fused=True
    )


def learning_rate(update: int, section: TrainerSection, total_updates: int) -> float:
    """The learning rate of an update, counted from 0.

    With W = ``warmup_updates``, r = ``min_lr_ratio`` and the progress p = (update − W) / (``total_updates`` − W), at
    most 1::

        warm-up    lr · (update + 1) / W                      for the first W updates
        constant   lr
        linear     lr · (r + (1 − r) · (1 − p))
        cosine     lr · (r + (1 − r) · (1 + cos(π p)) / 2)

    So update 0 moves, update W − 1 and W are at the peak, and r is where the schedule would be one update after the
    last, so that the last one moves even with r = 0. Updates past the end stay at r.
    """
    warmup = section.warmup_updates
    if update < warmup:
        return section.lr * (update + 1) / warmup
    if section.schedule == "constant":
        return section.lr
    progress = min(1.0, (update - warmup) / max(1, total_updates - warmup))
    falling = 1 - progress if section.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return section.lr * (section.min_lr_ratio + (1 - section.min_lr_ratio) * falling)
