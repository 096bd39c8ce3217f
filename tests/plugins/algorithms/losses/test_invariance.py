"""An update has one gradient, whatever its split into micro-batches and the order of its rows, with every loss."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rlcore.data.batch import Batch
from rlcore.data.loss_weights import loss_weights
from rlcore.engine.prepare import UpdatePreparation, update_preparation
from rlcore.plugins.config import PluginRef
from rlcore.plugins.interfaces import LossSpec
from rlcore.torch.logprobs import token_logprobs
from rlcore.torch.objective import Objective

torch.set_num_threads(1)

AGGREGATES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
LOSSES = {
    "gspo": {"clip_low": 0.2, "clip_high": 0.2},
    "cispo": {"clip_low": 0.5, "clip_high": 0.5},
    "gmpo": {},
    "sapo": {},
    "reinforce": {},
    "clip-cov": {"fraction": 0.3, "cov_low": 0.1, "cov_high": 100},
    "kl-cov": {"fraction": 0.3},
}
VOCABULARY, WIDTH = 11, 5


def make_batch(lengths: list[int], rng: np.random.Generator) -> Batch:
    """Random tokens over fixed hidden states; about a quarter is masked, with rubbish under the mask."""
    total = sum(lengths)
    tokens = rng.integers(VOCABULARY, size=total, dtype=np.int32)
    mask = (rng.random(total) < 0.75).astype(np.float32)
    advantages = np.repeat(2 * rng.normal(size=len(lengths)), lengths)
    old = rng.normal(-2.4, 0.5, size=total)
    return Batch.from_sequences(np.split(tokens, np.cumsum(lengths)[:-1])).with_tokens(
        loss_mask=mask,
        advantages=np.where(mask == 1, advantages, np.nan).astype(np.float32),
        old_logprobs=np.where(mask == 1, old, np.inf).astype(np.float32),
        hidden=np.arange(total),
    )


@cache
def made(name: str) -> tuple[Objective, UpdatePreparation | None]:
    """The loss as a backend has it, and as the controller has it."""
    ref = PluginRef("loss", name, LOSSES[name])
    return Objective(LossSpec(ref)), update_preparation(ref)


class Head:
    """Token log-probs from a linear head over given hidden states."""

    def __init__(self, batch: Batch, rng: np.random.Generator) -> None:
        self.hidden = torch.from_numpy(rng.normal(size=(len(batch.tokens), WIDTH)).astype(np.float32))
        self.weight = torch.from_numpy(rng.normal(size=(VOCABULARY, WIDTH)).astype(np.float32)).requires_grad_()

    def update(self, name: str, update: Batch, split: list[Any]) -> tuple[torch.Tensor, dict[str, float]]:
        """Gradient and metrics of an update in micro-batches of these rows. The loss prepares it before it is split."""
        objective, prepare = made(name)
        update = prepare(update) if prepare else update
        self.weight.grad = torch.zeros_like(self.weight)
        summed: dict[str, float] = {}
        for micro in update.split(split):
            mask = micro["loss_mask"] != 0
            ids = torch.from_numpy(micro.tokens[mask].astype(np.int64))
            hidden = self.hidden[micro["hidden"][mask]]
            logprobs, _ = token_logprobs(hidden, self.weight, ids, temperature=1.0, chunk_tokens=3, entropy=False)
            names = objective.columns & micro.token_columns.keys()
            columns = {name: torch.from_numpy(micro[name][mask]) for name in names}
            loss, sums = objective(logprobs, None, columns, torch.from_numpy(micro.rows[mask]), len(micro))
            loss.backward()
            summed = {name: summed.get(name, 0.0) + value.item() for name, value in sums.items()}
        assert self.weight.grad.isfinite().all()
        return self.weight.grad, objective.metrics(summed)


@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_one_gradient_for_every_split_and_order(name: str, aggregate: str, data: st.DataObject) -> None:
    """Field cases L01 and L17; what is under the mask (NaN, inf) never matters."""
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=6))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    batch = make_batch(lengths, rng)
    batch = batch.with_tokens(loss_weights=loss_weights(batch, aggregate, max_response_tokens=8))
    head = Head(batch, rng)
    want, want_metrics = head.update(name, batch, [np.arange(len(batch))])
    order = np.array(data.draw(st.permutations(range(len(batch)))), np.int64)
    cuts = data.draw(st.lists(st.integers(1, len(batch) - 1), unique=True))
    got, metrics = head.update(name, batch.select(order), np.split(np.arange(len(batch)), sorted(cuts)))
    assert (got - want).norm() <= 1e-5 * want.norm()
    assert metrics == pytest.approx(want_metrics, rel=1e-5, abs=1e-6)
    if name in ("clip-cov", "kl-cov") and batch["loss_mask"].sum() > 10:
        assert want_metrics["policy/selected_fraction"] <= 0.3
    if name == "kl-cov":  # clip-cov's band may hold no token of a small batch
        assert want_metrics["policy/selected_fraction"] > 0


@pytest.mark.parametrize("name", ["clip-cov", "kl-cov"])
def test_a_choice_made_in_each_micro_batch_would_be_another(name: str) -> None:
    """What the losses are prepared for: the same rows in two updates, not two micro-batches, have another gradient."""
    rng = np.random.default_rng(0)
    batch = make_batch([9, 2, 9, 1], rng)
    batch = batch.with_tokens(loss_weights=loss_weights(batch, "token-mean", max_response_tokens=9))
    head = Head(batch, rng)
    whole = head.update(name, batch, [[0, 1], [2, 3]])[0].clone()
    apart = sum(head.update(name, batch.select(np.array(rows)), [[0, 1]])[0].clone() for rows in ([0, 1], [2, 3]))
    assert (whole - apart).norm() > 1e-2 * whole.norm()
