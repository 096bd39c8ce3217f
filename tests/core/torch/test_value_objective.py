from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rlcore.errors import BatchError
from rlcore.plugins.interfaces import ValueLossSpec
from rlcore.torch.value_objective import ValueObjective


def run(
    values: list[float], old: list[float], returns: list[float], weights: list[float] | None = None, clip: Any = 0.5
) -> tuple[float, list[float], dict[str, float]]:
    """Loss, gradient and metrics in float64."""
    v = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    columns = {
        "values": torch.tensor(old, dtype=torch.float64),
        "returns": torch.tensor(returns, dtype=torch.float64),
        "loss_weights": torch.tensor(weights or [1 / len(values)] * len(values), dtype=torch.float64),
    }
    objective = ValueObjective(ValueLossSpec(clip))
    total, sums = objective(v, columns)
    total.backward()
    assert v.grad is not None
    return total.item(), v.grad.tolist(), objective.metrics({name: value.item() for name, value in sums.items()})


@pytest.mark.parametrize(
    ("v", "old", "goal", "loss", "gradient", "moved", "binds"),
    [
        # Within the clip both errors are one: ½ (1.2 − 2)².
        (1.2, 1.0, 2.0, 0.32, -0.8, 0, 0),
        # Past the clip towards the return: clipped to 1.5, whose error is the larger; nothing pulls.
        (1.8, 1.0, 2.0, 0.125, 0.0, 1, 1),
        (0.2, 1.0, 0.0, 0.125, 0.0, 1, 1),
        # Past the clip away from it: the error as it is counts, and pulls back.
        (1.8, 1.0, 0.0, 1.62, 1.8, 1, 0),
        # The return within the clip, overshot: ½ (1.8 − 1.3)² against ½ (1.5 − 1.3)².
        (1.8, 1.0, 1.3, 0.125, 0.5, 1, 0),
        # At the edge nothing has moved past it.
        (1.5, 1.0, 2.0, 0.125, -0.5, 0, 0),
    ],
)
def test_the_loss_of_one_token(
    v: float, old: float, goal: float, loss: float, gradient: float, moved: int, binds: int
) -> None:
    """Field case L20: the clip is around the old value, and its fraction is that of changes before they are clipped."""
    got, grad, metrics = run([v], [old], [goal])
    assert got == pytest.approx(loss)
    assert grad == pytest.approx([gradient])
    assert (metrics["critic/clip_fraction"], metrics["critic/clip_binding_fraction"]) == (moved, binds)
    assert metrics["critic/loss"] == pytest.approx(loss)


def test_without_a_clip_it_is_half_the_squared_error() -> None:
    loss, grad, metrics = run([1.8, 0.0], [1.0, 9.0], [2.0, 3.0], [0.25, 0.5], clip=None)
    assert loss == pytest.approx(0.25 * 0.5 * 0.04 + 0.5 * 0.5 * 9)
    assert grad == pytest.approx([-0.25 * 0.2, -0.5 * 3])
    assert not any("clip" in name for name in metrics)


def test_the_values_that_verl_gives() -> None:
    """Its ``compute_value_loss`` gives .225 and .1 for rows of 3, 2, 4 and 1 tokens, fitted to rewards 1, 0, .5 and 1
    at their last ones: all ten values have moved by .6 and the clip is .5.

    Its clip fraction is the share where the clipped error is the larger; ours, that of values past the clip, is all.
    """
    old = [0.1, 0.2, 0.3, 0.1, 0.2, 0.1, 0.2, 0.3, 0.4, 0.5]
    returns = [0, 0, 1, 0, 0, 0, 0, 0, 0.5, 1]
    loss, _, metrics = run([v + 0.6 for v in old], old, returns)
    assert loss == pytest.approx(0.225)
    assert metrics["critic/clip_binding_fraction"] == pytest.approx(0.1)
    assert metrics["critic/clip_fraction"] == 1
    assert metrics["critic/value_mean"] == pytest.approx(np.mean(old) + 0.6)
    assert metrics["critic/return_mean"] == pytest.approx(np.mean(returns))
    want = 1 - np.var(np.array(returns) - old) / np.var(returns)
    assert metrics["critic/explained_variance"] == pytest.approx(want)


@pytest.mark.parametrize(
    ("old", "returns", "want"),
    [
        ([1, 2, 4], [1, 2, 4], 1.0),
        ([7, 7, 7], [1, 2, 4], 0.0),  # a constant, however wrong
        ([3, 4, 6], [1, 2, 4], 1.0),  # an offset explains as much
        ([-1, -2, -4], [1, 2, 4], -3.0),  # Var(2G) / Var(G) = 4
        ([1, 2, 3], [0.1, 0.1, 0.1], 0.0),  # nothing to explain
        ([0, 0, 0], [0, 0, 0], 0.0),
        ([1], [2], 0.0),
    ],
)
def test_explained_variance(old: list[float], returns: list[float], want: float) -> None:
    assert run(old, old, returns)[2]["critic/explained_variance"] == pytest.approx(want)


def test_large_returns_keep_their_variance() -> None:
    returns = [1e4 + x for x in (0.0, 1.0, 2.0, 3.0)]
    old = [1e4 + x for x in (0.5, 0.5, 2.5, 2.5)]
    # Var(G) = 1.25, Var(G − v) = Var(±0.5) = 0.25.
    assert run(old, old, returns)[2]["critic/explained_variance"] == pytest.approx(0.8, rel=1e-6)


@given(
    st.lists(st.tuples(*[st.floats(-3, 3, width=32)] * 3, st.floats(0, 1, width=32)), min_size=2, max_size=12),
    st.data(),
)
def test_metrics_and_gradient_add_up_over_any_split(rows: list[tuple[float, ...]], data: st.DataObject) -> None:
    objective = ValueObjective(ValueLossSpec(0.5))
    cut = data.draw(st.integers(1, len(rows) - 1))

    def part(rows: list[tuple[float, ...]]) -> tuple[torch.Tensor, dict[str, float]]:
        v, old, returns, weights = (torch.tensor(c, dtype=torch.float32) for c in zip(*rows, strict=True))
        v.requires_grad_()
        total, sums = objective(v, {"values": old, "returns": returns, "loss_weights": weights})
        total.backward()
        assert v.grad is not None
        return v.grad, {name: value.item() for name, value in sums.items()}

    grad, whole = part(rows)
    (first, a), (second, b) = part(rows[:cut]), part(rows[cut:])
    assert torch.equal(torch.cat([first, second]), grad)
    added = {name: a[name] + b[name] for name in a}
    assert objective.metrics(added) == pytest.approx(objective.metrics(whole), rel=1e-5, abs=1e-6)
    assert all(math.isfinite(value) for value in objective.metrics(whole).values())


def test_what_is_missing_is_named() -> None:
    objective, v = ValueObjective(ValueLossSpec()), torch.zeros(2)
    with pytest.raises(BatchError, match=r"needs the token columns returns, values; the batch has: loss_weights"):
        objective(v, {"loss_weights": v})
    with pytest.raises(BatchError, match=r"column 'returns' has shape \[3\], the values \[2\]"):
        objective(v, {"loss_weights": v, "values": v, "returns": torch.zeros(3)})
