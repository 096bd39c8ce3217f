"""Losses as functions of plain lists, in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from rlcore.plugins.config import PluginRef
from rlcore.plugins.loading import build
from rlcore.torch.losses import LossInputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

torch.set_num_threads(1)


@dataclass
class Result:
    """Loss and metrics of each token, and the gradient of the weighted sum of losses over each log-prob."""

    loss: list[float]
    gradient: list[float]
    metrics: dict[str, list[float]]


def evaluate(
    name: str,
    log_ratios: Sequence[float],
    advantages: Sequence[float],
    *,
    lengths: Sequence[int] | None = None,
    logprobs: Sequence[float] | None = None,
    weights: Sequence[float] | None = None,
    extras: dict[str, Sequence[float]] | None = None,
    **options: Any,
) -> Result:
    """The loss ``name`` of tokens with these log-ratios. One sequence unless ``lengths`` says more; log π is −1 unless
    ``logprobs`` are given; weights are 1.
    """
    d = torch.tensor(log_ratios, dtype=torch.float64)
    now = torch.full_like(d, -1.0) if logprobs is None else torch.tensor(logprobs, dtype=torch.float64)
    now.requires_grad_()
    lengths = [len(d)] if lengths is None else lengths
    w = torch.ones_like(d) if weights is None else torch.tensor(weights, dtype=torch.float64)
    inputs = LossInputs(
        now,
        now.detach() - d,
        torch.tensor(advantages, dtype=torch.float64),
        w,
        torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)),
        len(lengths),
        {key: torch.tensor(value, dtype=torch.float64) for key, value in (extras or {}).items()},
    )
    output = build(PluginRef("loss", name, options))(inputs)
    (output.loss * w).sum().backward()
    for metric in output.metrics.values():
        assert not metric.requires_grad
    return Result(
        output.loss.tolist(),
        now.grad.tolist(),  # type: ignore[union-attr]
        {key: metric.tolist() for key, metric in output.metrics.items()},
    )


@pytest.fixture(name="evaluate")
def _evaluate() -> Callable[..., Result]:
    return evaluate
