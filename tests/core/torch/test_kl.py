import subprocess
import sys

import numpy as np
import pytest
import torch
from rlcore.errors import ManifestError
from rlcore.torch.kl import kl, kl_numpy

ESTIMATORS = ("k1", "abs", "k2", "k3")


def both(estimator, logprobs, ref_logprobs):
    """The same estimate in torch and numpy."""
    in_torch = kl(estimator, torch.tensor(logprobs), torch.tensor(ref_logprobs)).numpy()
    in_numpy = kl_numpy(estimator, np.array(logprobs, np.float32), np.array(ref_logprobs, np.float32))
    return in_torch, in_numpy


@pytest.mark.parametrize(
    ("estimator", "value"),
    # d = ln(.5/.4) = .22314; d²/2 = .0249; .4/.5 + d − 1 = .02314
    [("k1", 0.22314), ("abs", 0.22314), ("k2", 0.02490), ("k3", 0.02314)],
)
def test_hand_computed_value(estimator, value):
    for result in both(estimator, [np.log(0.5)], [np.log(0.4)]):
        assert result == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize(
    ("estimator", "value"),
    # d = ln(.2/.6) = −1.09861; d²/2 = .60347; .6/.2 + d − 1 = .90139
    [("k1", -1.09861), ("abs", 1.09861), ("k2", 0.60347), ("k3", 0.90139)],
)
def test_hand_computed_value_below_the_reference(estimator, value):
    for result in both(estimator, [np.log(0.2)], [np.log(0.6)]):
        assert result == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize(
    ("estimator", "gradient"),
    [("k1", lambda d: 1.0), ("abs", np.sign), ("k2", lambda d: d), ("k3", lambda d: 1 - np.exp(-d))],
)
@pytest.mark.parametrize("d", [-3.0, -0.5, 0.25, 4.0])
def test_gradient_is_the_hand_derived_one(estimator, gradient, d):
    logprobs = torch.tensor([d - 1.0], requires_grad=True)
    kl(estimator, logprobs, torch.tensor([-1.0])).sum().backward()
    assert logprobs.grad.item() == pytest.approx(gradient(d), rel=1e-5)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("d", [-100.0, 100.0, -1e4, 1e4])
def test_far_apart_stays_finite(estimator, d):
    """Field case L11."""
    logprobs = torch.tensor([d], requires_grad=True)
    value = kl(estimator, logprobs, torch.zeros(1))
    value.sum().backward()
    assert value.isfinite().all()
    assert logprobs.grad.isfinite().all()
    assert np.isfinite(kl_numpy(estimator, np.array([d], np.float32), np.zeros(1, np.float32))).all()


def test_k3_at_its_bound_and_on_the_side_that_needs_none():
    low, high = torch.tensor([-100.0], requires_grad=True), torch.tensor([100.0], requires_grad=True)
    value = kl("k3", low, torch.zeros(1))
    assert value.item() == pytest.approx(np.exp(20) - 21, rel=1e-6)
    assert torch.autograd.grad(value.sum(), low)[0].item() == 0
    value = kl("k3", high, torch.zeros(1))
    assert value.item() == 99
    assert torch.autograd.grad(value.sum(), high)[0].item() == 1


def test_k3_keeps_its_digits_near_zero():
    """k3 ≈ d²/2 = 5e-9 at d = 1e-4, less than a float32 step (6e-8) from the 1 in its formula."""
    for result in both("k3", [1e-4], [0.0]):
        assert result == pytest.approx(5e-9, rel=0.01)


POLICY, REFERENCE = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])


@pytest.mark.parametrize(
    ("estimator", "gradient"),
    [
        # Over logits z: Σ_v π_v · ∂estimate/∂d · ∇ log π_v, by hand for each estimator.
        ("k1", lambda kl_gradient, forward_gradient: np.zeros(3)),
        ("k2", lambda kl_gradient, forward_gradient: kl_gradient),
        ("k3", lambda kl_gradient, forward_gradient: forward_gradient),
    ],
)
def test_expected_gradient_as_a_loss_term(estimator, gradient):
    """Field case L14: over the policy's own tokens, k1 as a loss pushes nowhere, k2 is KL(π‖ref), k3 KL(ref‖π)."""
    logits = torch.tensor(np.log(POLICY), requires_grad=True)
    per_token = kl(estimator, torch.log_softmax(logits, 0), torch.tensor(np.log(REFERENCE)))
    (torch.tensor(POLICY) * per_token).sum().backward()
    log_ratio = np.log(POLICY / REFERENCE)
    kl_gradient = POLICY * (log_ratio - (POLICY * log_ratio).sum())
    np.testing.assert_allclose(logits.grad.numpy(), gradient(kl_gradient, POLICY - REFERENCE), atol=1e-12)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_mean_over_the_policy_is_kl(estimator):
    mean = (POLICY * kl_numpy(estimator, np.log(POLICY), np.log(REFERENCE))).sum()
    assert mean == pytest.approx((POLICY * np.log(POLICY / REFERENCE)).sum())


def test_numpy_keeps_dtype():
    assert kl_numpy("k3", np.zeros(3, np.float32), np.ones(3, np.float32)).dtype == np.float32


def test_unknown_estimator():
    with pytest.raises(ManifestError, match="unknown KL estimator 'k4'; there are: k1, abs, k2, k3"):
        kl_numpy("k4", np.zeros(1), np.zeros(1))


def test_kl_of_rewards_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None; import numpy as np; from rlcore.torch.kl import kl_numpy;"
        "print(kl_numpy('k1', np.ones(1), np.zeros(1)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "[1.]\n"
