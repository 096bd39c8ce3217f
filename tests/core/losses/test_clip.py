import math

import pytest
import torch
from rlcore.errors import PluginError
from rlcore.plugins.config import PluginRef
from rlcore.plugins.loading import build
from rlcore.torch.losses import LossInputs


def run(ratios, advantages, **options):
    """Loss, gradient with respect to the log-probs, and metrics of the clip loss at these ratios."""
    old = torch.full((len(ratios),), -1.0)
    logprobs = (old + torch.tensor(ratios, dtype=torch.float32).log()).requires_grad_()
    segments = torch.zeros(len(ratios), dtype=torch.int64)
    a = torch.tensor(advantages, dtype=torch.float32)
    inputs = LossInputs(logprobs, old, a, torch.ones_like(a), segments, 1)
    output = build(PluginRef("loss", "clip", options))(inputs)
    output.loss.sum().backward()
    metrics = {name: value.tolist() for name, value in output.metrics.items()}
    return output.loss.tolist(), logprobs.grad.tolist(), metrics


def test_each_side_has_its_own_range():
    ratios = [0.5, 1.1, 1.25, 1.5, 0.5, 1.25, 1.5, 0.9]
    loss, gradient, metrics = run(ratios, [2, 2, 2, 2, -2, -2, -2, -2], clip_high=0.3)
    # A > 0: cut above 1.3; A < 0: cut below 0.8. The gradient of −Aρ over log-probs is −Aρ itself.
    assert loss == pytest.approx([-1, -2.2, -2.5, -2.6, 1.6, 2.5, 3, 1.8])
    assert gradient == pytest.approx([-1, -2.2, -2.5, 0, 0, 2.5, 3, 1.8])
    assert metrics["clip_fraction"] == [0, 0, 0, 1, 1, 0, 0, 0]
    assert metrics["ratio"] == pytest.approx(ratios)


def test_dual_clip_bounds_negative_advantages_only():
    loss, gradient, metrics = run([7, 7, 2.9, 0.1], [-1, 1, -1, -1], dual_clip=3.0)
    assert loss == pytest.approx([3, -1.2, 2.9, 0.8])
    assert gradient == pytest.approx([0, 0, 2.9, 0])
    assert metrics["clip_fraction_lower"] == [1, 0, 0, 0]
    assert metrics["clip_fraction"] == [0, 1, 0, 1]


def test_without_dual_clip_nothing_bounds_them():
    loss, gradient, metrics = run([7], [-1], dual_clip=None)
    assert loss == pytest.approx([7])
    assert gradient == pytest.approx([7])
    assert "clip_fraction_lower" not in metrics


@pytest.mark.parametrize("options", [{}, {"clip_low": 0, "clip_high": 0}])
def test_first_update_is_the_plain_policy_gradient(options):
    """At ratio 1 the gradient is −A, whatever the range."""
    loss, gradient, metrics = run([1, 1, 1], [2, 0, -3], **options)
    assert loss == gradient == [-2, 0, 3]
    assert metrics["clip_fraction"] == metrics["clip_fraction_lower"] == [0, 0, 0]


def test_log_ratio_is_bounded_at_20():
    logprobs = torch.tensor([-1.0, -101.0], requires_grad=True)
    a = torch.tensor([-1.0, 1.0])
    inputs = LossInputs(logprobs, torch.tensor([-101.0, -1.0]), a, a, torch.zeros(2, dtype=torch.int64), 1)
    output = build(PluginRef("loss", "clip", {"dual_clip": None}))(inputs)
    output.loss.sum().backward()
    assert output.loss.tolist() == pytest.approx([math.exp(20), -math.exp(-20)])
    assert logprobs.grad.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_low": -0.1}, "option clip_low: .*greater than or equal to 0, got -0.1"),
        ({"clip_low": 1.5}, "option clip_low: .*less than or equal to 1"),
        ({"clip_high": -1}, "option clip_high: .*greater than or equal to 0"),
        ({"dual_clip": 1.0}, "option dual_clip: .*greater than 1, got 1.0"),
        ({"clip_hihg": 0.3}, "unknown option 'clip_hihg'; did you mean 'clip_high'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(PluginError, match=message):
        build(PluginRef("loss", "clip", options))
