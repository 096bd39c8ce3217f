"""One update has one gradient: for every split into micro-batches, order of rows and prompts, and number of ranks.

The batch is as bad as they come: prompts of all lengths, groups of uneven sizes, masked rows, a group that is masked
whole, responses of one token, rows without a response. Old log-probs differ from the policy's, so that ratios clip.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from rlcore import Batch, LossSpec
from rlcore.data.loss_weights import loss_weights
from rlcore.data.sharding import shard
from rlcore.plugins.config import PluginRef
from rlcore.plugins.interfaces import AlgorithmContext
from rlcore.plugins.loading import build

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlcore_fsdp.backend import FsdpBackend

AGGREGATES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
CLIP = PluginRef("loss", "clip", {"clip_high": 0.28})
SPECS = [
    LossSpec(CLIP, kl_coef=kl, kl_estimator="k3", entropy_coef=entropy)
    for kl, entropy in product((0.0, 0.3), (0.0, 0.1))
]
MAX_RESPONSE = 20
LONGEST = 34
# (group, prompt tokens, response tokens, masked): sizes 4, 1, 3, 2 and 2.
ROWS = [
    *((3, 5, n, False) for n in (12, 1, 20, 0)),
    (8, 1, 7, False),
    *((1, 14, n, masked) for n, masked in ((20, False), (3, True), (1, False))),
    *((7, 3, n, True) for n in (9, 4)),
    *((2, 9, n, False) for n in (0, 0)),
]


def make_update() -> Batch:
    """All rows, with the rewards' advantages; no weights yet. Group 8 is one sample, so its advantage is 0."""
    rng = np.random.default_rng(4)
    batch = Batch.from_sequences([rng.integers(0, 256, p + r, np.int32) for _, p, r, _ in ROWS])
    mask = [np.repeat(np.array([0, not masked], np.float32), [p, r]) for _, p, r, masked in ROWS]
    batch = batch.with_tokens(loss_mask=np.concatenate(mask)).with_samples(
        group=np.array([row[0] for row in ROWS]),
        unit=np.arange(len(ROWS)),
        reward=rng.normal(size=len(ROWS)).astype(np.float32),
    )
    return build(PluginRef("algorithm", "grpo"), AlgorithmContext(4, MAX_RESPONSE, seed=0))(batch)  # type: ignore[no-any-return]


def finish(batch: Batch, backend: FsdpBackend, aggregate: str) -> Batch:
    """With weights, and log-probs that are 0.4 of noise away from the policy's, at live tokens only."""
    rng = np.random.default_rng(5)
    here = backend.forward(batch, ["logprobs"])["logprobs"]
    old, ref = (np.where(batch["loss_mask"] == 1, here + 0.4 * rng.normal(size=len(here)), np.nan) for _ in "ab")
    return batch.with_tokens(
        old_logprobs=old,
        ref_logprobs=ref,
        loss_weights=loss_weights(batch, aggregate, max_response_tokens=MAX_RESPONSE),
    )


def gradient(backend: FsdpBackend, batch: Batch, spec: LossSpec) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    metrics = dict(backend.forward_backward(batch, spec))
    gradients = {n: p.grad.full_tensor().clone() for n, p in backend.parameters.items()}  # type: ignore[union-attr]
    assert backend.optimizer is not None
    backend.optimizer.zero_grad()
    return metrics, gradients


def agree(got: tuple[Any, Any], want: tuple[Any, Any]) -> None:
    """Gradients within 1e-5 of the whole norm and of each tensor's, metrics within float32's residue."""
    metrics, gradients = want
    assert got[0].keys() == metrics.keys()
    assert got[0] == pytest.approx(metrics, rel=1e-5, abs=1e-6)
    for name, tensor in gradients.items():
        assert (got[1][name] - tensor).norm() < 1e-5 * tensor.norm(), name


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_one_gradient_for_every_split_and_order(new_backend: Callable[..., FsdpBackend], temperature: float) -> None:
    whole, tight, loose = (
        new_backend(temperature=temperature, tokens_per_micro_batch=tokens) for tokens in (4096, LONGEST, 61)
    )
    batch = make_update()
    assert batch.lengths.max() == LONGEST
    rng = np.random.default_rng(0)
    clipped = []
    for aggregate, spec in product(AGGREGATES, SPECS):
        update = finish(batch, whole, aggregate)
        want = gradient(whole, update, spec)
        clipped.append(want[0]["policy/clip_fraction"])
        assert all(np.isfinite(value) for value in want[0].values())
        assert all(tensor.isfinite().all() for tensor in want[1].values())
        for backend in (tight, loose):
            agree(gradient(backend, update.select(rng.permutation(len(update))), spec), want)
        # Weights and advantages made anew of rows in another order, the groups' numbers changed: the same update.
        order = rng.permutation(len(batch))
        agree(gradient(loose, finish_again(update.select(order), aggregate), spec), want)
    assert min(clipped) > 0.1


def finish_again(update: Batch, aggregate: str) -> Batch:
    """Advantages and weights computed of this batch itself."""
    renamed = update.with_samples(group=100 - 3 * update["group"])
    estimate: Any = build(PluginRef("algorithm", "grpo"), AlgorithmContext(4, MAX_RESPONSE, seed=0))
    weights = loss_weights(renamed, aggregate, max_response_tokens=MAX_RESPONSE)
    return estimate(renamed).with_tokens(loss_weights=weights)  # type: ignore[no-any-return]


def test_a_whole_weight_is_what_the_aggregate_says(new_backend: Callable[..., FsdpBackend]) -> None:
    """The loss itself, in float64 from the formulas of the paper: rows, tokens, 1 / (N · 20) and all."""
    backend = new_backend(tokens_per_micro_batch=61)
    batch = make_update()
    for aggregate in AGGREGATES:
        update = finish(batch, backend, aggregate)
        logp = backend.forward(update, ["logprobs"])["logprobs"].astype(np.float64)
        rows = []
        for row in range(len(update)):
            at = np.arange(update.offsets[row], update.offsets[row + 1])
            at = at[update["loss_mask"][at] == 1]
            a, ratio = update["advantages"][at].astype(np.float64), np.exp(logp[at] - update["old_logprobs"][at])
            loss = np.maximum(-a * ratio, -a * np.clip(ratio, 0.8, 1.28))
            rows.append(np.where(a < 0, np.minimum(loss, -3 * a), loss))
        live = [row for row in rows if len(row)]
        assert len(live) == 6
        expected = {
            "token-mean": np.concatenate(live).mean(),
            "seq-mean-token-mean": np.mean([row.mean() for row in live]),
            "seq-mean-token-sum": np.mean([row.sum() for row in live]),
            "seq-mean-token-sum-norm": np.mean([row.sum() / MAX_RESPONSE for row in live]),
        }
        metrics, _ = gradient(backend, update, SPECS[0])
        assert metrics["policy/loss"] == pytest.approx(expected[aggregate], rel=1e-5)


def test_one_gradient_on_one_rank_and_on_two(new_backend: Callable[..., FsdpBackend], on_two_ranks: Any) -> None:
    """Shares as the core makes them; and one rank without a live token, or without a row."""
    one = new_backend(temperature=0.6)
    batch = make_update()
    dead = np.flatnonzero(batch.sum_rows(batch["loss_mask"]) == 0)
    alive = np.setdiff1d(np.arange(len(batch)), dead)
    divisions = [shard(batch, 2), [dead, alive], [np.arange(len(batch)), np.zeros(0, np.int64)]]
    cases = []
    for number, (aggregate, spec) in enumerate(product(AGGREGATES, SPECS)):
        cases.append((finish(batch, one, aggregate), divisions[number % 3], spec))
    first_rank, second_rank = on_two_ranks(one, cases, tokens_per_micro_batch=61)
    for (update, _, spec), first, second in zip(cases, first_rank, second_rank, strict=True):
        want = gradient(one, update, spec)
        agree(first, want)
        agree(second, want)
