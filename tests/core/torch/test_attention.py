from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rlcore.data.batch import offsets_of
from rlcore.errors import ModelError
from rlcore.torch.attention import packed_attention
from rlcore.torch.packing import Packing
from torch import Tensor, nn

LENGTHS = [3, 1, 40, 17, 16, 2]


class Layer(nn.Module):
    is_causal = True


def heads(total: int, count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, count, total, 8, generator=generator).requires_grad_()


def dense(query: Tensor, key: Tensor, value: Tensor, offsets: np.ndarray, scale: float) -> Tensor:
    """softmax(q kᵀ · scale) v in float64 with the whole mask written out: one sequence, not later."""
    q, k, v = (x[0].double() for x in (query, key, value))
    k, v = (x.repeat_interleave(len(q) // len(x), 0) for x in (k, v))
    row = torch.from_numpy(np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)))
    allowed = (row[:, None] == row[None]).tril()
    scores = (q @ k.transpose(1, 2) * scale).masked_fill(~allowed, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1)[None]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=8), st.sampled_from([1, 2, 4]))
def test_equals_dense_attention_with_its_gradients(lengths: list[int], kv_heads: int) -> None:
    offsets = offsets_of(np.array(lengths))
    q, k, v = (heads(sum(lengths), n, seed) for seed, n in enumerate((4, kv_heads, kv_heads)))
    got, weights = packed_attention(Layer(), q, k, v, None, packing=Packing.of(offsets, "cpu"), scaling=0.3)
    want = dense(q, k, v, offsets, 0.3)
    assert weights is None
    assert got.shape == (1, sum(lengths), 4, 8)
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-5)
    upstream = torch.randn(got.shape, generator=torch.Generator().manual_seed(9))
    mine = torch.autograd.grad(got, (q, k, v), upstream)
    theirs = torch.autograd.grad(want, (q, k, v), upstream.double())
    torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention_mask": torch.zeros(1, 1, 4, 4)}, "Layer asks for a mask, dropout or attention that is not causal"),
        ({"dropout": 0.1}, "dropout"),
        ({"softcap": 30.0}, "Layer asks for softcap, which packed attention does not compute"),
        ({"s_aux": torch.zeros(4)}, "s_aux"),
        ({"is_causal": False}, "not causal"),
        ({"packing": None}, "without packing"),
        ({"sliding_window": 39}, r"a sequence of 40 tokens is longer than the model's sliding window \(39\)"),
    ],
)
def test_refuses_what_it_would_compute_wrongly(change: dict[str, Any], message: str) -> None:
    q = heads(sum(LENGTHS), 4, 0)
    arguments: dict[str, Any] = {
        "attention_mask": None,
        "packing": Packing.of(offsets_of(np.array(LENGTHS)), "cpu"),
        **change,
    }
    with pytest.raises(ModelError, match=message):
        packed_attention(Layer(), q, q, q, arguments.pop("attention_mask"), **arguments)


def test_a_window_that_holds_every_sequence_changes_nothing() -> None:
    q = heads(sum(LENGTHS), 4, 0)
    packing = Packing.of(offsets_of(np.array(LENGTHS)), "cpu")
    within, _ = packed_attention(Layer(), q, q, q, None, packing=packing, sliding_window=40)
    without, _ = packed_attention(Layer(), q, q, q, None, packing=packing)
    assert torch.equal(within, without)


def test_a_module_that_is_not_causal_is_refused() -> None:
    layer = Layer()
    layer.is_causal = False
    q = heads(4, 4, 0)
    with pytest.raises(ModelError, match="not causal"):
        packed_attention(layer, q, q, q, None, packing=Packing.of(np.array([0, 4]), "cpu"))
