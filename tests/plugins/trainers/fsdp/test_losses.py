"""Losses that look at a sequence, or at a whole update: one gradient for every split, and on one rank or two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from rlcore import Batch, LossSpec
from rlcore.data.loss_weights import loss_weights
from rlcore.data.sharding import shard
from rlcore.engine.prepare import update_preparation
from rlcore.plugins.config import PluginRef

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlcore_fsdp.backend import FsdpBackend

LOSSES = [
    PluginRef("loss", "gspo", {"clip_low": 0.01, "clip_high": 0.01}),
    PluginRef("loss", "clip-cov", {"fraction": 0.2, "cov_low": 0.1, "cov_high": 100.0}),
    PluginRef("loss", "kl-cov", {"fraction": 0.2}),
]


def finish(batch: Batch, backend: FsdpBackend, loss: PluginRef) -> Batch:
    """An advantage for each row, log-probs a little away from the policy's, weights, and what the loss prepares."""
    rng = np.random.default_rng(1)
    here = backend.forward(batch, ["logprobs"])["logprobs"]
    batch = batch.with_tokens(
        advantages=batch.spread(rng.normal(size=len(batch)).astype(np.float32)) * batch["loss_mask"],
        old_logprobs=here + 0.3 * rng.normal(size=len(here)).astype(np.float32),
        loss_weights=loss_weights(batch, "seq-mean-token-mean", max_response_tokens=32),
    ).with_samples(unit=np.arange(len(batch)))
    prepare = update_preparation(loss)
    return prepare(batch) if prepare else batch


def gradient(backend: FsdpBackend, batch: Batch, loss: PluginRef) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    metrics = dict(backend.forward_backward(batch, LossSpec(loss)))
    gradients = {n: p.grad.full_tensor().clone() for n, p in backend.parameters.items()}  # type: ignore[union-attr]
    assert backend.optimizer is not None
    backend.optimizer.zero_grad()
    return metrics, gradients


def agree(got: tuple[Any, Any], want: tuple[Any, Any]) -> None:
    assert got[0] == pytest.approx(want[0], rel=1e-5, abs=1e-6)
    for name, tensor in want[1].items():
        assert (got[1][name] - tensor).norm() < 1e-5 * tensor.norm(), name


def test_one_gradient_for_every_split_order_and_number_of_ranks(
    new_backend: Callable[..., FsdpBackend], batch: Batch, on_two_ranks: Any
) -> None:
    whole, tight = (new_backend(tokens_per_micro_batch=tokens) for tokens in (4096, 30))
    updates = [finish(batch, whole, loss) for loss in LOSSES]
    wanted = [gradient(whole, update, loss) for update, loss in zip(updates, LOSSES, strict=True)]
    assert 0 < wanted[0][0]["policy/clip_fraction"] < 1
    assert all(0 < metrics["policy/selected_fraction"] <= 0.2 for metrics, _ in wanted[1:])
    order = np.random.default_rng(0).permutation(len(batch))
    for update, loss, want in zip(updates, LOSSES, wanted, strict=True):
        agree(gradient(tight, update.select(order), loss), want)
    cases = [(update, shard(update, 2), LossSpec(loss)) for update, loss in zip(updates, LOSSES, strict=True)]
    for seen in on_two_ranks(whole, cases, tokens_per_micro_batch=61):
        for got, want in zip(seen, wanted, strict=True):
            agree(got, want)
